/* specc runtime: load an artifact, decode with it. C99, no C++ type and no exception crosses this border.
 *
 * Threads: an artifact is immutable once loaded and may be shared by sessions on several threads; a session belongs to one
 * thread at a time, except specc_session_cancel, which any thread may call. Sessions of one artifact share its thread pool
 * and take turns per round; those of a batch share their rounds, and a thread.
 *
 * Memory: weights are mapped read-only and shared; a session allocates its state when opened and nothing in a round. */
#ifndef SPECC_H
#define SPECC_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(_WIN32)
#define SPECC_API
#else
#define SPECC_API __attribute__((visibility("default")))
#endif

#define SPECC_INTERFACE_VERSION 9

typedef struct specc_artifact specc_artifact;
typedef struct specc_session specc_session;
typedef struct specc_batch specc_batch;

typedef enum specc_result {
  SPECC_OK = 0,
  SPECC_DONE = 1,      /* specc_session_next, _generate: generation has ended, see specc_session_finish_reason */
  SPECC_CANCELLED = 2, /* the same, _append: cancelled; the session may be used again */
  SPECC_INVALID = 3,   /* an argument is wrong */
  SPECC_ARTIFACT = 4,  /* the artifact is damaged, foreign, too new, or for another CPU */
  SPECC_MEMORY = 5,
  SPECC_RUNTIME = 6    /* the computation failed (a NaN, for one) */
} specc_result;

/* Compare with SPECC_INTERFACE_VERSION before any other call. */
SPECC_API int32_t specc_interface_version(void);
SPECC_API const char* specc_version(void);

/* Text of this thread's last failure, never NULL:
 * "SPECC-E0503 what\n  where: ...\n  expected: ...\n  found: ...\n  cure: ...". */
SPECC_API const char* specc_last_error(void);

/* threads: 0 takes the number of physical cores available to this process.
 * The threads belong to the artifact's model library. Artifacts loaded from one unchanged file share it, and its threads:
 * while one of them is loaded, the number asked for by others is ignored. A file that was replaced since is another
 * library, with code and threads of its own.
 * SPECC_PIN=1 in the environment binds each of them, but for the calling one, to a core of its own. */
SPECC_API specc_result specc_artifact_load(const char* path, int32_t threads, specc_artifact** out);
/* The same from memory: assets of an app, sections of an executable, files that the caller maps by descriptor.
 * `find` gives the bytes of a file of the artifact by its name ("manifest.json", "model.so", "weights.safetensors",
 * "tokenizer.bin"), and returns 0 if there is none. They stay where they are, unchanged, until the artifact and its
 * sessions are freed; weights begin on a multiple of 64. Other files of the folder need not be there.
 * `model`, `build`: specc_model_entry and specc_model_build of the artifact's libmodel.a, if the program is linked with it
 * (specc compile --static); those of another artifact are refused. A program has room for one such model. NULL loads
 * "model.so" through an anonymous file, on Linux, each time as a library of its own.
 * An artifact for a device (an NPU) is loaded from a folder alone. */
typedef struct specc_source {
  size_t size; /* sizeof(specc_source) */
  int32_t (*find)(void* user, const char* name, const void** data, size_t* size);
  void* user;
  const struct specc_model* (*model)(void);
  const char* build;
} specc_source;
SPECC_API specc_result specc_artifact_load_from(const specc_source*, int32_t threads, specc_artifact** out);
SPECC_API void specc_artifact_free(specc_artifact*);
/* How many threads run its kernels. */
SPECC_API int32_t specc_artifact_threads(const specc_artifact*);
/* From the next kernel on, let only so many of them work, 1 to all; any thread may call it, at any time. Tokens are the
 * same with any. For processes that share their cores with others. */
SPECC_API specc_result specc_artifact_use_threads(specc_artifact*, int32_t threads);
/* The manifest as JSON text, owned by the artifact. */
SPECC_API const char* specc_artifact_manifest(const specc_artifact*);

/* Text <-> tokens. Two-call pattern: *count receives the size needed; with ids == NULL that is all (SPECC_OK), too small a
 * capacity is SPECC_INVALID.
 * add_special != 0 adds what the model's tokenizer adds (BOS for many). parse_special != 0 turns the text of special
 * tokens ("<|im_start|>") into their ids, as Hugging Face tokenizers do; 0 keeps it as plain text. */
SPECC_API specc_result specc_tokenize(const specc_artifact*, const char* text, size_t bytes, int32_t add_special,
                                      int32_t parse_special, int64_t* ids, size_t capacity, size_t* count);
SPECC_API specc_result specc_detokenize(const specc_artifact*, const int64_t* ids, size_t count, int32_t skip_special,
                                        char* text, size_t capacity, size_t* bytes);

SPECC_API specc_result specc_session_open(specc_artifact*, specc_session**);
SPECC_API void specc_session_close(specc_session*);

/* Options by name, best set before specc_session_append; unknown names and values out of range are refused.
 *   max_tokens              int    >= 0, new tokens (default 128)
 *   ignore_eos              int    0|1
 *   num_speculative_tokens  int    -1 adaptive (default), or one of the artifact's K
 *   draft_depth             int    -1 adaptive (default), or one of the artifact's depths
 *   length_policy           text   what chooses how much is drafted; the tokens are the same with any:
 *                                  "adaptive" (default): what pays by measured costs and acceptance;
 *                                  "prompt-length": 2 for prompts under 32 tokens, 8 over 2048, else 5;
 *                                  "aimd": one more after a round that kept all drafts, half after one that lost some;
 *                                  "batch:N" (16): nothing while more than N texts of the artifact are in the making;
 *                                  "priority": up to the share of the longest draft that draft_weight is of the
 *                                  greatest of all texts in the making.
 *                                  The next smaller K of the artifact is taken; the last two limit a fixed K too, beside
 *                                  the second and third one is refused
 *   draft_source            text   who drafts, where a drafter on the host (the caller's, else the artifact's) stands beside
 *                                  one in the graph: "any" (default), as pays; "graph"; "host", which drafts nothing if
 *                                  there is none. May be changed between rounds; the tokens are the same with any
 *   draft_weight            float  above 0 (default 1)
 *   guard_rounds            int    rounds between two looks at the guards around the state's buffers (default 64; 1: no
 *                                  token of a round is given out before them; 0: never). The end of a text is one too.
 *                                  Damage is SPECC_RUNTIME, from then on in every round of the session
 *   prompt_logprobs         int    -1 none (default); n: those of each token that is appended, and of the n best in its place,
 *                                  see specc_session_prompt_logprobs. The prompt then goes through the functions that
 *                                  verify, K + 1 tokens a call for the longest K, which takes longer than prefill
 *   seed                    int    noise of sampling (default 0)
 *   temperature             float  0 is greedy (default); or 1e-30 and more
 * The rest change which tokens are chosen, with the formulas of vLLM, in each row of a round as in plain decoding: the
 * tokens are the same with any K. Rounds then come in pieces, since the choice is made outside of compiled functions.
 *   top_k                   int    0 takes all (default)
 *   top_p, min_p            float  1 and 0 take all (default)
 *   repetition_penalty      float  > 0, of tokens in prompt or output (default 1)
 *   frequency_penalty, presence_penalty  float, of tokens in the output (default 0)
 *   min_tokens              int    new tokens before which neither EOS nor stop tokens are chosen (default 0)
 *   logprobs                int    -1 none (default); n: those of the token and of the n best, see specc_session_logprobs
 *   acceptance_rule         text   "match" (default): drafts that are the target's own choice; "rejection" or "block"
 *                                  (p/q) have its law at temperatures above 0, but not the tokens of a seed
 *   confidence_threshold    float  0 (default) to 1: drafts are not verified from the first on that the drafter believes
 *                                  less likely to be kept; for drafters with a head for that (DSpark), else refused
 *   stop_token_ids          ids    see below
 *   banned_token_ids        ids    never chosen
 * What an artifact of an earlier version cannot do is refused (SPECC-E0601). */
SPECC_API specc_result specc_session_set_int(specc_session*, const char* name, int64_t value);
SPECC_API specc_result specc_session_set_float(specc_session*, const char* name, double value);
SPECC_API specc_result specc_session_set_text(specc_session*, const char* name, const char* value);
SPECC_API specc_result specc_session_set_ids(specc_session*, const char* name, const int64_t* ids, size_t count);
/* stop_token_ids: extra token ids that end generation (finish reason "stop"). Such a token is neither returned nor
 * committed, and ends generation even with ignore_eos; the model's own EOS is returned as the last token, and committed. */
SPECC_API specc_result specc_session_set_stop_tokens(specc_session*, const int64_t* ids, size_t count);
/* Added to the logits of these tokens; replaces what was set before. */
SPECC_API specc_result specc_session_set_logit_bias(specc_session*, const int64_t* ids, const float* bias, size_t count);
/* A grammar's say, once a round: which tokens may follow the `count` committed ids (of which the first `prompt` were
 * appended last or before), and each of the `n_drafts` drafts after them. Bit v % 32 of word v / 32 in row r of `mask`
 * [n_drafts + 1, words] lets token v follow drafts[0..r); all bits are set when it is called. Returns how many leading
 * drafts are allowed: rows up to that one are looked at. More than n_drafts is a failure (SPECC_RUNTIME). NULL for none.
 * It must not call this session, nor free anything. */
typedef size_t (*specc_mask_fn)(void* user, const int64_t* committed, size_t prompt, size_t count, const int64_t* drafts,
                                size_t n_drafts, uint32_t* mask, size_t words);
SPECC_API specc_result specc_session_set_mask(specc_session*, specc_mask_fn, void* user);
/* A drafter of the caller: proposes up to `k` tokens that may follow the committed ids, returns how many it wrote.
 * It takes the place of the artifact's own drafter where that runs on the host (none, ngram, suffix, mtp:structure). Where
 * the artifact drafts in its graph and its rounds come in pieces, it stands beside that, see draft_source; others refuse it.
 * Proposing nothing leaves the round without drafts, or to the graph. */
typedef size_t (*specc_drafter_fn)(void* user, const int64_t* committed, size_t count, size_t k, int64_t* draft);
SPECC_API specc_result specc_session_set_drafter(specc_session*, specc_drafter_fn, void* user);

/* Appends prompt tokens to the committed ones, clears the finish reason and starts counting max_tokens anew. Prefill
 * happens here. Tokens that specc_session_next has not returned yet are dropped first: the text is what was appended
 * and what was returned. With count == 0, generation goes on from there. On failure or SPECC_CANCELLED nothing is
 * appended. */
SPECC_API specc_result specc_session_append(specc_session*, const int64_t* ids, size_t count);
/* Keeps the first `count` tokens appended or returned; clears the finish reason. 0 empties the session. */
SPECC_API specc_result specc_session_rewind(specc_session*, size_t count);
/* One committed token per call; tokens of a round are buffered. After SPECC_RUNTIME the text is as it was before the
 * round. */
SPECC_API specc_result specc_session_next(specc_session*, int64_t* token);
/* Round after round in one call, until `capacity` tokens are there or generation ends. The first *count of `tokens` are
 * committed and returned whatever the result is: SPECC_OK if they are as many as fit, else what specc_session_next would
 * have returned after them. What else the last round gave, the next call returns. */
SPECC_API specc_result specc_session_generate(specc_session*, int64_t* tokens, size_t capacity, size_t* count);
/* With the option logprobs = n: natural logarithms of the probabilities, by the model's logits alone, of the token that
 * specc_session_next returned last, and of the n best, best first, into arrays of `capacity` (*count of them; too small
 * is SPECC_INVALID). */
SPECC_API specc_result specc_session_logprobs(const specc_session*, float* token, int64_t* top_ids, float* top_logprobs,
                                              size_t capacity, size_t* count);
/* With the option prompt_logprobs = n: the same of token `index` of those that the last specc_session_append added, whatever
 * was generated since, and its rank: 1 is the best. Rank 0, and none of the best, is the text's first token, which follows
 * nothing. */
SPECC_API specc_result specc_session_prompt_logprobs(const specc_session*, size_t index, float* token, int64_t* rank,
                                                     int64_t* top_ids, float* top_logprobs, size_t capacity,
                                                     size_t* count);
/* "", "stop" (EOS or stop token), "length" (max_tokens), "context" (the artifact's max_model_len is full). Known as soon
 * as the last token was returned. */
SPECC_API const char* specc_session_finish_reason(const specc_session*);
/* The running or the next call of next, or of append with something to prefill, returns SPECC_CANCELLED, once. Looked at
 * between rounds and between prefill chunks. */
SPECC_API void specc_session_cancel(specc_session*);

/* Statistics by name; reset by specc_session_append (acceptance_ewma is not).
 *   rounds, drafts (rounds with K > 0), draft_tokens, accepted_tokens, new_tokens, prefill_tokens   (counts)
 *   unread_tokens: new ones that specc_session_next will give without another round   (a count)
 *   prefill_s; decode_s, of which draft_s in host drafters and round_s in round functions           (seconds)
 *   (waiting for other sessions is in decode_s alone; bringing a drafter up to the prompt is prefill; up to what was decoded without it, decoding)
 *   k_current, depth_current (of the last round, 0 without depths), acceptance_ewma
 *   guard_checks: looks at the guards (a count, 0 where a device holds the state); state_bytes: what is reserved for the state at present
 *   of rounds, without bringing a drafter up: launches (compiled functions and kernels that were called), host_syncs (times
 *   that the engine had their results before it went on), thread_syncs (times that threads met in a kernel)   (counts)
 *   found_drafts: of the drafts, those found in the text, where a drafter on the host stands beside one in the graph
 *   cut_mismatch, cut_grammar, cut_confidence, cut_stop, cut_length: rounds that lost drafts, by what came first   (counts)
 * accepted_tokens counts what verification accepted, also where a stop or cap then cut the block. */
SPECC_API specc_result specc_session_stat(const specc_session*, const char* name, double* value);
/* Drafts that reached block position `position` (0-based), and those of them that were accepted. */
SPECC_API specc_result specc_session_stat_position(const specc_session*, size_t position, double* drafted, double* accepted);
/* Rounds and seconds spent with each K of the artifact, for cost models. index runs over the manifest's K list. */
SPECC_API specc_result specc_session_stat_k(const specc_session*, size_t index, double* rounds, double* seconds,
                                            double* tokens);

/* Runs one function of the plan by name on this session's state with explicit inputs, for tools and tests: `verify_4`,
 * say. inputs: int64 data, one pointer per declared input in manifest order, with its element count; float64 inputs are
 * given as whole numbers. The first output is copied to `output` as float32 or int64 according to its dtype; NULL asks
 * for the size. Positions the function writes are computed again before the next round: a tool cannot spoil the text. */
SPECC_API specc_result specc_session_run(specc_session*, const char* function, const int64_t* const* inputs,
                                         const size_t* counts, size_t n_inputs, void* output, size_t capacity_bytes,
                                         size_t* bytes);

/* Several texts in one pass of the model, for artifacts that were compiled with --max-num-seqs above 1. A batch has the
 * state of all its sessions; like one session, they and it belong to one thread at a time. They are sessions as above, with
 * options and drafters of their own, and the tokens of each are those that it makes alone: prompts are prefilled by
 * specc_session_append, and specc_session_next with nothing to read plays a round of that text by itself.
 * texts: that may be open at once, 0 for as many as the artifact has room for. */
SPECC_API specc_result specc_batch_open(specc_artifact*, int32_t texts, specc_batch**);
/* Its sessions may stay open; what they share is freed with the last. */
SPECC_API void specc_batch_close(specc_batch*);
/* A new text of the batch, with a place in its state until specc_session_close. SPECC_INVALID if all are taken. */
SPECC_API specc_result specc_batch_session(specc_batch*, specc_session**);
/* Plays a round of each of these sessions whose tokens are all read, and which has not ended and was not cancelled: they
 * draft one after the other, and one pass verifies the drafts of all. How much each drafts is chosen for the tokens per
 * second of the whole batch, where its options leave that open. What came of it, specc_session_next tells without running
 * anything: tokens, the end, or that text's failure, which no other has a part in. Statistics of a session count the
 * calls of the pass as its own, and of its seconds the share of its rows.
 * SPECC_INVALID, and nothing is played, for a session of another batch or named twice. */
SPECC_API specc_result specc_batch_step(specc_batch*, specc_session* const* sessions, size_t count);
/* Of the passes so far: passes, texts and rows (sums over passes), pass_s (seconds). */
SPECC_API specc_result specc_batch_stat(const specc_batch*, const char* name, double* value);
#ifdef __cplusplus
}
#endif
#endif
