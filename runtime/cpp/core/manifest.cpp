#include "manifest.h"

#include <algorithm>
#include <set>

#include "cpu.h"
#include "drafters/host_drafter.h"
#include "dtype.h"
#include "error.h"
#include "json_cursor.h"
#include "mapped_file.h"

namespace specc {
namespace {

constexpr int64_t kSchemaVersion = 1;
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr int64_t kMaxTexts = int64_t{1} << 16;
constexpr int64_t kMaxDraft = 1024;
constexpr int64_t kMaxChunk = 65536;

void check_version(const JsonCursor& root, const char* field, int64_t known) {
  const int64_t version = root.at(field).integer();
  if (version == known) return;
  throw Error(Code::TooNew, version > known ? "the artifact is newer than this library" : "the artifact is too old")
      .where(root.path() + "." + field)
      .expected(std::to_string(known))
      .found(std::to_string(version))
      .cure(version > known ? "update specc" : "compile the artifact again");
}

void check_device(const JsonCursor& device, const std::string& arch, const std::string& isa) {
  const auto refuse = [&](const char* what, std::string expected, std::string found) {
    throw Error(Code::WrongDevice, what)
        .where(device.path())
        .expected(std::move(expected))
        .found(std::move(found))
        .cure("compile the artifact for this machine, or with --isa avx2");
  };
  const std::string& type = device.at("type").string();
  if (type != "cpu") refuse("the artifact is for another kind of device", "cpu", type);
  if (arch != cpu_arch()) refuse("the artifact is for another architecture", arch, cpu_arch());
  if (!cpu_supports(isa)) {
    refuse("this CPU lacks instructions the artifact uses", isa, std::string("a CPU without them"));
  }
}

std::vector<int64_t> read_shape(const JsonCursor& list, bool rows_allowed) {
  std::vector<int64_t> shape;
  for (const auto& item : list.items()) {
    shape.push_back(rows_allowed && item.is_word("T") ? kRows : item.integer(0, kMaxBytes));
  }
  if (shape.size() > kMaxRank) list.fail("too many dimensions");
  return shape;
}

int32_t read_dtype(const JsonCursor& field) {
  const DtypeInfo* dtype = dtype_named(field.string());
  if (dtype == nullptr) field.fail("unknown dtype", "f32 f64 i64 i32 i8 u8 bool bf16 f16");
  return dtype->number;
}

std::vector<ValueSpec> read_values(const JsonCursor& list) {
  std::vector<ValueSpec> values;
  for (const auto& item : list.items()) {
    ValueSpec value{item.at("name").string(), read_dtype(item.at("dtype")), read_shape(item.at("shape"), true)};
    auto largest = value.shape;
    std::replace(largest.begin(), largest.end(), kRows, kMaxChunk);
    if (!checked_bytes(largest, 8)) item.fail("a value is absurdly large");
    values.push_back(std::move(value));
  }
  return values;
}

FunctionSpec read_function(const std::string& name, const JsonCursor& field) {
  FunctionSpec function{name, read_values(field.at("inputs")), read_values(field.at("outputs")), {}};
  for (const auto& item : field.at("plan").items()) {
    CallSpec call{item.at("entry").string(), item.at("in").strings(), item.at("out").strings(), {}};
    if (const auto attrs = item.find("attrs")) call.attrs = attrs->integers(INT64_MIN, INT64_MAX);
    function.calls.push_back(std::move(call));
  }
  return function;
}

ModelSpec read_model(const JsonCursor& field) {
  ModelSpec model;
  model.vocab_size = field.at("vocab_size").integer(1, INT32_MAX);
  model.max_model_len = field.at("max_model_len").integer(1, kMaxTokens);
  if (const auto texts = field.find("max_num_seqs")) model.max_num_seqs = texts->integer(1, kMaxTexts);
  model.prefill_chunk = field.at("prefill_chunk").integer(1, kMaxChunk);
  model.eos_token_ids = field.at("eos_token_ids").integers(0, model.vocab_size - 1);
  return model;
}

DraftState read_draft_state(const JsonCursor& field) {
  if (field.is_word("none")) return DraftState::kNone;
  if (field.is_word("target")) return DraftState::kTarget;
  if (field.is_word("own")) return DraftState::kOwn;
  field.fail("the drafter's state is unknown", "none, target or own");
}

void read_host_options(const JsonCursor& field, DrafterSpec& drafter) {
  const auto option = [&](const char* name, int64_t& value) {
    if (const auto found = field.find(name)) value = found->integer(1, kMaxDraft);
  };
  option("prompt_lookup_min", drafter.prompt_lookup_min);
  option("prompt_lookup_max", drafter.prompt_lookup_max);
  option("max_tree_depth", drafter.max_tree_depth);
  option("max_matches", drafter.max_matches);
  if (const auto found = field.find("max_window")) drafter.max_window = found->integer(1, kMaxTokens);
  if (const auto found = field.find("min_similarity")) drafter.min_similarity = found->number(-1, 1);
  if (drafter.prompt_lookup_min > drafter.prompt_lookup_max) field.fail("prompt_lookup_min exceeds prompt_lookup_max");
  if (const auto found = field.find("max_spec_factor")) drafter.max_spec_factor = found->number(0, kMaxDraft);
  if (const auto found = field.find("min_token_prob")) drafter.min_token_prob = found->number(0, 1);
}

DrafterSpec read_drafter(const JsonCursor& field) {
  DrafterSpec drafter;
  drafter.kind = field.at("kind").string();
  drafter.state = read_draft_state(field.at("state"));
  // A round has one input for tokens before the root, `previous`; caches that are not the drafter's own never lag.
  drafter.lag = field.at("lag").integer(0, drafter.state == DraftState::kOwn ? 1 : 0);
  if (const auto name = field.find("extend")) {
    drafter.extend = name->string();
    if (drafter.state != DraftState::kOwn) name->fail("a drafter without state of its own has nothing to extend");
  }
  if (const auto least = field.find("min_length")) drafter.min_length = least->integer(0, 1);
  if (const auto rows = field.find("draft_rows")) drafter.draft_rows = rows->integer(0, kMaxTokens);
  if (!drafter.extend.empty() && drafter.min_length == 0) field.fail("a drafter that is extended needs a min_length");
  if (const auto name = field.find("host_drafter")) {
    drafter.host_drafter = name->string();
    if (!knows_host_drafter(drafter.host_drafter)) name->fail("the host drafter is unknown");
  }
  if (const auto depths = field.find("depths")) drafter.depths = depths->integers(1, kMaxDraft);
  if (!std::is_sorted(drafter.depths.begin(), drafter.depths.end(), std::less_equal<>())) {
    field.fail("depths must ascend");
  }
  if (const auto options = field.find("options")) read_host_options(*options, drafter);
  return drafter;
}

std::vector<RoundSpec> read_rounds(const JsonCursor& list) {
  std::vector<RoundSpec> rounds;
  for (const auto& item : list.items()) {
    const auto piece = [&](const char* name) {
      const auto found = item.find(name);
      return found ? found->string() : std::string();
    };
    RoundSpec round{item.at("function").string(), item.at("k").integer(0, kMaxDraft),
                    item.at("depth").integer(0, kMaxDraft), piece("propose"), piece("verify")};
    round.nodes = round.length;
    if (const auto nodes = item.find("nodes")) round.nodes = nodes->integer(round.length, kMaxDraft);
    round.commit = piece("commit");
    rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<StateSpec> read_state(const JsonCursor& list, int64_t rows) {
  std::vector<StateSpec> state;
  std::set<std::string> names;
  int64_t total = 0;
  for (const auto& item : list.items()) {
    StateSpec buffer{item.at("name").string(), read_dtype(item.at("dtype")), read_shape(item.at("shape"), false)};
    buffer.bytes = item.at("bytes").integer(0, kMaxBytes);
    const auto needed = checked_bytes(buffer.shape, dtype_numbered(buffer.dtype)->bytes);
    if (!needed || *needed != buffer.bytes) item.fail("a state buffer's shape and its bytes disagree");
    const auto kind = item.find("kind");
    buffer.by_position = kind && !kind->is_word("hidden_states") && buffer.shape.size() >= 2 && buffer.shape[1] == rows;
    if (!names.insert(buffer.name).second) item.fail("a state buffer occurs twice");
    if ((total += buffer.bytes) > kMaxBytes) item.fail("the state is absurdly large");
    state.push_back(std::move(buffer));
  }
  return state;
}

std::vector<int64_t> read_draft_lengths(const JsonCursor& field) {
  auto lengths = field.integers(0, kMaxDraft);
  if (lengths.empty() || lengths.front() != 0 || !std::is_sorted(lengths.begin(), lengths.end(), std::less_equal<>())) {
    field.fail("the draft lengths are wrong", "an ascending list that begins with 0");
  }
  return lengths;
}

std::string inner_path(const JsonCursor& field, const std::string& path) {
  if (!is_inner_path(path)) field.fail("a file name leaves the artifact", "a relative path without '..'");
  return path;
}

std::vector<FileSpec> read_files(const JsonCursor& field) {
  std::vector<FileSpec> files;
  for (const auto& entry : field.entries()) {
    files.push_back({inner_path(entry.value, entry.key),
                     static_cast<uint64_t>(entry.value.at("bytes").integer(0, INT64_MAX)),
                     entry.value.at("sha256").string()});
  }
  return files;
}

Json parse_manifest(const std::string& text, const std::string& source) {
  Json document = Json::parse(text, source);
  if (document.object() == nullptr) throw Error(Code::NotAnArtifact, "not an artifact").where(source);
  return document;
}

}  // namespace

bool Manifest::in_pieces() const {
  return std::all_of(rounds.begin(), rounds.end(), [](const RoundSpec& round) { return !round.verify.empty(); });
}

Manifest Manifest::parse(std::string text, const std::string& source) {
  Manifest manifest;
  manifest.text = std::move(text);
  const Json document = parse_manifest(manifest.text, source);
  const JsonCursor root(document, source + ": manifest");
  check_version(root, "schema_version", kSchemaVersion);
  check_version(root, "abi", SPECC_MODEL_ABI);

  const JsonCursor device = root.at("device");
  manifest.arch = device.at("arch").string();
  manifest.isa = device.at("isa").string();
  check_device(device, manifest.arch, manifest.isa);

  manifest.model = read_model(root.at("model"));
  manifest.draft_lengths = read_draft_lengths(root.at("num_speculative_tokens"));
  manifest.drafter = read_drafter(root.at("drafter"));
  manifest.rounds = read_rounds(root.at("rounds"));
  if (const auto score = root.find("score")) manifest.score = score->string();
  const bool beside = !manifest.drafter.host_drafter.empty() && !manifest.drafter.on_host();
  if (beside && !manifest.in_pieces()) {
    root.at("rounds").fail("what a host drafter finds is verified by itself", "the verify function of each round");
  }
  const int64_t rows = manifest.model.max_model_len * manifest.model.max_num_seqs;
  manifest.state = read_state(root.at("state"), rows);
  const std::string seen = buffer_of_host_drafter(manifest.drafter.host_drafter);
  const auto is_seen = [&](const StateSpec& buffer) {
    return buffer.name == seen && buffer.dtype == SPECC_F32 && buffer.shape.size() == 3 && buffer.shape[0] == 1 &&
           buffer.shape[1] == rows && buffer.shape[2] > 0;
  };
  if (!seen.empty() && std::none_of(manifest.state.begin(), manifest.state.end(), is_seen)) {
    root.at("state").fail("what the host drafter reads is missing", "a buffer " + seen + " f32 [1, S, width]");
  }
  manifest.arena = read_arena(root.find("arena"), manifest.state, rows);
  for (const auto& entry : root.at("functions").entries()) {
    manifest.functions.push_back(read_function(entry.key, entry.value));
  }
  const JsonCursor weights = root.at("weights");
  manifest.weights_file = inner_path(weights, weights.at("file").string());
  manifest.weights_bytes = static_cast<uint64_t>(weights.at("bytes").integer(0, INT64_MAX));
  manifest.files = read_files(root.at("files"));
  return manifest;
}

}  // namespace specc
