"""One engine with one model in a process of its own: answers requests on stdin with JSON lines.

    python worker.py KIND MODEL THREADS [OPTION]

It is run by the Python that has the engine's package and imports nothing of specc but for KIND
`specc`. A request is {"ids": [...], "new": N, "draft": false}; the answer holds seconds to the
first token, seconds of the other N - 1, and the ids. Every engine decodes greedily, past the end of
text, on THREADS threads. `draft` asks for the engine's own n-gram drafter.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

DRAFTS = 5
"""Tokens that a peer's n-gram drafter proposes, where it wants to be told."""
NGRAM = 3

Answer = tuple[float, float, list[int]]
Engine = Callable[[list[int], int, bool], Answer]


def specc(model: str, threads: int, _option: str) -> Engine:
    """An artifact; `draft` lets its own drafter run with adaptive K."""
    from specc.runtime import Artifact

    artifact = Artifact.load(model, threads)

    def run(ids: list[int], new: int, draft: bool) -> Answer:
        with artifact.session() as session:
            k = -1 if draft else 0
            session.configure(max_tokens=new, ignore_eos=True, num_speculative_tokens=k)
            began = time.perf_counter()
            session.append(ids)
            return _stepwise(began, session.iterate())

    return run


def transformers(model: str, threads: int, _option: str) -> Engine:
    """Eager torch, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded.generation_config.eos_token_id = None

    class Clock:
        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def run(ids: list[int], new: int, draft: bool) -> Answer:
        clock = Clock()  # put once for the prompt, then for every token or group of tokens
        how = {"prompt_lookup_num_tokens": DRAFTS, "max_matching_ngram_size": NGRAM}
        began = time.perf_counter()
        out = loaded.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=new, min_new_tokens=new, do_sample=False, streamer=clock, pad_token_id=0,
            **(how if draft else {}),
        )  # fmt: skip
        ended = time.perf_counter()
        first = clock.times[1]
        return first - began, ended - first, out[0, len(ids) :].tolist()

    return run


def onnxruntime_genai(model: str, threads: int, _option: str) -> Engine:
    """A folder made by its model builder; `intra_op_num_threads` is set here."""
    import onnxruntime_genai as og

    config = og.Config(model)
    config.overlay(json.dumps(
        {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    ))  # fmt: skip
    loaded = og.Model(config)

    def run(ids: list[int], new: int, draft: bool) -> Answer:
        params = og.GeneratorParams(loaded)
        params.set_search_options(
            max_length=len(ids) + new, min_length=len(ids) + new, do_sample=False
        )
        if draft:
            params.set_speculative_options(ngram_size=NGRAM, max_draft_tokens=DRAFTS)
        generator = og.Generator(loaded, params)

        def tokens() -> Iterator[int]:
            generator.append_tokens(ids)
            seen = len(ids)
            while seen < len(ids) + new and not generator.is_done():
                generator.generate_next_token()
                sequence = generator.get_sequence(0)
                yield from map(int, sequence[seen : len(ids) + new])
                seen = len(sequence)

        return _stepwise(time.perf_counter(), tokens())

    return run


def openvino_genai(model: str, threads: int, option: str) -> Engine:
    """A folder converted by optimum-intel. `option` f32: compute so, where bf16 is the default."""
    import numpy
    import openvino
    import openvino_genai as og

    # Its own defaults keep the caches of earlier prompts and find a prompt's beginning there: then
    # its prefill would be measured once, and looking up ever after.
    schedule = og.SchedulerConfig()
    schedule.enable_prefix_caching = False
    schedule.max_num_batched_tokens = 1 << 30
    how: dict[str, object] = {"INFERENCE_NUM_THREADS": threads, "scheduler_config": schedule}
    if option:
        how["INFERENCE_PRECISION_HINT"] = option
    # Prompt lookup is decided when the pipeline is made, so both are kept; weights are mapped.
    plain = og.LLMPipeline(model, "CPU", **how)
    lookup: list[og.LLMPipeline] = []

    def run(ids: list[int], new: int, draft: bool) -> Answer:
        if draft and not lookup:
            lookup.append(og.LLMPipeline(model, "CPU", prompt_lookup=True, **how))
        config = og.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        if draft:
            config.num_assistant_tokens, config.max_ngram_size = DRAFTS, NGRAM
        prompt = og.TokenizedInputs(
            openvino.Tensor(numpy.array([ids], dtype=numpy.int64)),
            openvino.Tensor(numpy.ones((1, len(ids)), dtype=numpy.int64)),
        )
        done = (lookup[0] if draft else plain).generate(prompt, config)
        first = done.perf_metrics.get_ttft().mean / 1e3
        whole = done.perf_metrics.get_generate_duration().mean / 1e3
        return first, whole - first, list(done.tokens[0])

    return run


def llama_cpp(model: str, threads: int, _option: str) -> Engine:
    """llama.cpp as llama-cpp-python builds it for this machine, called without the Python around it.

    Its n-gram mode is that package's prompt lookup. Without flash attention, which is slower on CPUs.
    """
    import llama_cpp as lc
    import numpy
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lc.llama_backend_init()
    loaded = lc.llama_model_load_from_file(model.encode(), lc.llama_model_default_params())
    how = lc.llama_context_default_params()
    how.n_ctx = how.n_batch = 2560
    how.n_threads = how.n_threads_batch = threads
    how.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = lc.llama_init_from_model(loaded, how)
    if not context:
        raise RuntimeError(f"llama.cpp does not load {model}")
    memory = lc.llama_get_memory(context)
    vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(loaded))
    lookup = LlamaPromptLookupDecoding(max_ngram_size=NGRAM, num_pred_tokens=DRAFTS)
    batch = lc.llama_batch_init(how.n_batch, 0, 1)

    def decode(rows: list[int], start: int, wanted: int) -> list[int]:
        """The likeliest next tokens of the last `wanted` rows, which stand at `start` and after it."""
        batch.n_tokens = len(rows)
        for i, token in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i >= len(rows) - wanted
        if lc.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        logits = (
            numpy.ctypeslib.as_array(lc.llama_get_logits_ith(context, i), shape=(vocabulary,))
            for i in range(len(rows) - wanted, len(rows))
        )
        return [int(row.argmax()) for row in logits]

    def run(ids: list[int], new: int, draft: bool) -> Answer:
        def tokens() -> Iterator[int]:
            lc.llama_memory_clear(memory, False)
            text = [*ids, *decode(ids, 0, 1)]
            yield text[-1]
            while (left := len(ids) + new - len(text)) > 0:
                found = lookup(numpy.array(text, dtype=numpy.intc)) if draft else ()
                drafts = [int(t) for t in found][: left - 1]
                said = decode([text[-1], *drafts], len(text) - 1, len(drafts) + 1)
                agreed = 0
                while agreed < len(drafts) and drafts[agreed] == said[agreed]:
                    agreed += 1
                text += said[: agreed + 1]
                lc.llama_memory_seq_rm(memory, 0, len(text) - 1, -1)
                yield from said[: agreed + 1]

        return _stepwise(time.perf_counter(), tokens())

    return run


def _stepwise(began: float, tokens: Iterator[int]) -> Answer:
    first = next(tokens)
    at_first = time.perf_counter()
    rest = list(tokens)
    return at_first - began, time.perf_counter() - at_first, [first, *rest]


KINDS = {f.__name__: f for f in (specc, transformers, onnxruntime_genai, openvino_genai, llama_cpp)}


def die_with_parent() -> None:
    """Even a stopped process must not outlive a bench that was killed (PR_SET_PDEATHSIG, Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    """Load, say so, answer until stdin ends."""
    die_with_parent()
    kind, model, threads, option = (*sys.argv[1:], "")[:4]
    answers = os.fdopen(os.dup(1), "w")  # engines print what they like to stdout
    os.dup2(2, 1)
    try:
        engine = KINDS[kind](model, int(threads), option)
        answers.write('{"ready": true}\n')
        answers.flush()
        for line in sys.stdin:
            asked = json.loads(line)
            first, rest, ids = engine(asked["ids"], asked["new"], asked["draft"])
            answers.write(json.dumps({"first_s": first, "rest_s": rest, "ids": ids}) + "\n")
            answers.flush()
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
