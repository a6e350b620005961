"""`manifest.json` as typed, frozen values. README.md beside this file describes the format."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specc.errors import ArtifactError
from specc.runtime.fields import Field, check_inner, damaged, without_twins
from specc.runtime.graph_facts import CudaCode, Graphs
from specc.runtime.packed import PackedMatrix, read_packed, reduced
from specc.runtime.state import Arena, StateBuffer, read_arena, read_state

SCHEMA_VERSION = 1
"""The newest manifest this package reads."""

MODEL_ABI = 1
"""The border to compiled functions (SPECC_MODEL_ABI in specc_model.h)."""

Dim = int | str
"""A number, or `"T"`: the rows of a call."""

STATES = ("none", "target", "own")
HOST_DRAFTERS = ("ngram", "suffix", "mtp:structure")

_MOST_BYTES = 32 << 20  # of manifest text; the engine draws the same line
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True)
class Device:
    """What the artifact was compiled for."""

    type: str
    arch: str
    isa: str


@dataclass(frozen=True)
class Model:
    """Facts about the target that a caller needs. `add_bos`: prompts begin with `bos_token_id`.

    Caches hold `max_num_seqs` texts of up to `max_model_len` tokens, one after the other.
    """

    vocab_size: int
    max_model_len: int
    prefill_chunk: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    max_num_seqs: int = 1


@dataclass(frozen=True)
class Drafter:
    """Who drafts.

    `state`: whose calls write what it drafts through, one of STATES. `lag`: rows a round feeds it again. `extend`: the
    function that fills its own state, where prefill does not. `min_length`: positions before the
    first that it drafts after. `draft_rows`: rows from the root's on that drafting writes.
    `host_drafter`: the runtime's code that drafts, if any does: alone, or beside a drafter in the graph.
    `draft_vocab_size`: token ids that a drafter in the rounds may propose; 0: all. `options`: what
    the code on the host reads.
    """

    kind: str
    state: str
    lag: int = 0
    extend: str | None = None
    min_length: int = 0
    draft_rows: int = 0
    host_drafter: str | None = None
    depths: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    draft_vocab_size: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> bool:
        """Whether drafts come from outside the rounds."""
        return self.state == "none"


@dataclass(frozen=True)
class Round:
    """The function that plays a round of `k` drafts, `depth` deep; 0 where there are no depths.

    `verify` gives the logits that it decides by, after `propose` where the drafter is in the graph. It verifies
    `nodes` tokens after the root: k, or more where drafts are a tree. Where the host gives the tree, of k nodes,
    `commit` moves the rows of the path that it chose.
    """

    function: str
    k: int
    depth: int
    nodes: int
    propose: str | None = None
    verify: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Value:
    """An input or output of a function."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class Function:
    """The border of one plan; `calls` is how many instructions it has."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    calls: int


@dataclass(frozen=True)
class FileEntry:
    """A file of the artifact."""

    path: str
    bytes: int
    sha256: str


def read_file(artifact: Path, entry: FileEntry) -> bytes:
    """What a file holds, if that is what the manifest lists. Raises ArtifactError (SPECC-E0505)."""
    file = artifact / entry.path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ArtifactError(
            "SPECC-E0505", "a file of the artifact is missing", where=str(file),
            found=error.strerror or str(error), cure="copy the artifact again",
        ) from error  # fmt: skip
    digest = hashlib.sha256(data).hexdigest()
    if len(data) != entry.bytes or digest != entry.sha256:
        raise ArtifactError(
            "SPECC-E0505", "a file of the artifact has another hash or size than the manifest says", where=str(file),
            expected=f"{entry.bytes} bytes, sha256 {entry.sha256}",
            found=f"{len(data)} bytes, sha256 {digest}", cure="copy the artifact again",
        )  # fmt: skip
    return data


@dataclass(frozen=True)
class Manifest:
    """The whole of it. `raw` is the document as read, with fields this version does not know.

    `score` names the function that verifies what several texts drafted, in artifacts for more than one.
    """

    schema_version: int
    abi: int
    specc_version: str
    name: str
    method: str
    backend: str
    lossless: bool
    device: Device
    model: Model
    num_speculative_tokens: tuple[int, ...]
    drafter: Drafter
    rounds: tuple[Round, ...]
    score: str | None
    state: tuple[StateBuffer, ...]
    functions: Mapping[str, Function]
    weights_file: str
    weights_bytes: int
    packed: Mapping[str, PackedMatrix]
    files: Mapping[str, FileEntry]
    provenance: Mapping[str, Any]
    graphs: Graphs | None
    cuda: CudaCode | None
    arena: Arena | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def read(cls, artifact: Path) -> Manifest:
        """The manifest in directory `artifact`; raises ArtifactError (E0501 to E0503)."""
        path = artifact / "manifest.json"
        if not path.is_file():
            raise ArtifactError(
                "SPECC-E0501",
                "not an artifact",
                where=str(artifact),
                expected="a directory with a manifest.json",
                found=_what_is(artifact),
                cure=_instead_of(artifact),
            )
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise damaged(str(path), f"at most {_MOST_BYTES} bytes", "more")
            text = path.read_bytes()
        except OSError as error:
            raise ArtifactError(
                "SPECC-E0501", "the manifest cannot be read", where=str(path),
                found=error.strerror or str(error), cure="check the permissions",
            ) from error  # fmt: skip
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: bytes | str, source: str = "manifest.json") -> Manifest:
        """Check and read manifest text; `source` is for messages."""
        try:
            document = json.loads(text, object_pairs_hook=without_twins)
        except (ValueError, RecursionError) as error:
            raise damaged(source, "JSON", str(error)) from error
        root = Field(document, source)
        schema, abi = _versions(root)
        model = _model(root["model"])
        lengths = _draft_lengths(root["num_speculative_tokens"])
        drafter = _drafter(root["drafter"])
        state = tuple(read_state(item) for item in root["state"].items())
        functions = {n: _function(n, f) for n, f in root["functions"].entries()}
        return cls(
            schema_version=schema,
            abi=abi,
            specc_version=root["specc_version"].string(),
            name=root["name"].string(),
            method=root["method"].string(),
            backend=root["backend"].string(),
            lossless=root["lossless"].boolean(),
            device=_device(root["device"]),
            model=model,
            num_speculative_tokens=lengths,
            drafter=drafter,
            rounds=_rounds(root["rounds"], lengths, drafter, functions),
            score=_function_name(root.get("score"), functions),
            state=state,
            functions=functions,
            weights_file=root["weights"]["file"].inner_path(),
            weights_bytes=root["weights"]["bytes"].integer(0),
            packed=read_packed(root["weights"].get("packed")),
            files={n: _file(n, f) for n, f in root["files"].entries()},
            provenance=root.get("provenance").mapping({}),
            graphs=Graphs.read(root.get("graphs")),
            cuda=CudaCode.read(root.get("cuda")),
            arena=read_arena(root.get("arena"), state, model.max_model_len * model.max_num_seqs),
            raw=document,
        )

    @property
    def reduced(self) -> tuple[str, ...]:
        """Encodings of fewer than 32 bits that the target's weights are in, and with them a drafter's."""
        return reduced(self.packed, drafter=False)

    @property
    def drafter_reduced(self) -> tuple[str, ...]:
        """The same where a drafter's weights alone are in them, which changes no text."""
        return reduced(self.packed, drafter=True)

    @property
    def approximations(self) -> tuple[str, ...]:
        """All that makes the artifact another model than its original: `reduced` weights, and caches."""
        caches = sorted({b.dtype for b in self.state} & {"f16", "bf16"})
        dtype = next((g.dtype for g in (self.graphs, self.cuda) if g is not None), "f32")
        halves = () if dtype == "f32" else (f"{dtype} products",)
        return (*self.reduced, *halves, *(f"{dtype} caches" for dtype in caches))

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What its sessions may be asked for that not every artifact can; the engine refuses the rest (SPECC-E0601).

        `choices`: options that change which tokens are chosen, logprobs, masks. `batch`: several texts in one pass.
        """
        outputs = {o.name for f in self.functions.values() for o in f.outputs}
        known = {
            "choices": all(r.verify for r in self.rounds), "confidence_threshold": "confidence_0" in outputs,
            "draft_depth": bool(self.drafter.depths), "batch": self.score is not None,
        }  # fmt: skip
        return tuple(name for name, can in known.items() if can)

    @property
    def speculates(self) -> bool:
        """Whether any round drafts."""
        return len(self.num_speculative_tokens) > 1

    def round(self, k: int, depth: int = 0) -> Round:
        """The round of `k` drafts; `depth` counts only where such rounds have depths.

        Raises KeyError for one that the artifact does not have.
        """
        wanted = depth if k and self.drafter.depths else 0
        for played in self.rounds:
            if (played.k, played.depth) == (k, wanted):
                return played
        raise KeyError((k, depth))

    def verify_inputs(self, k: int, tokens: Sequence[int], start: int) -> dict[str, list[int]]:
        """Inputs of `verify_K` for consecutive tokens of a text, from position `start` on.

        They are no tree: where rows may be one, they are told to be all roots.
        """
        at = list(range(start, start + len(tokens)))
        known = {"tokens": list(tokens), "positions": at, "rows": at, "parents": [-1] * len(at)}
        return {v.name: known[v.name] for v in self.functions[f"verify_{k}"].inputs}

    @property
    def state_bytes_by_zone(self) -> dict[str, int]:
        """Bytes that a session allocates, by zone of the arena."""
        zones: dict[str, int] = {}
        for buffer in self.state:
            zones[buffer.zone] = zones.get(buffer.zone, 0) + buffer.bytes
        return zones

    @property
    def state_bytes(self) -> int:
        """Bytes that a session allocates in all, for the longest text; or a batch, for all its texts."""
        return self.arena.plans[-1].bytes if self.arena else sum(b.bytes for b in self.state)

    @property
    def text_bytes(self) -> int:
        """Of those, the part of one text."""
        return self.state_bytes // self.model.max_num_seqs

    @property
    def source_model(self) -> str | None:
        """The MODEL this was compiled from, as given then, if that was recorded."""
        model = self.provenance.get("model")
        return model if isinstance(model, str) and model else None


def _what_is(path: Path) -> str:
    if _is_model(path):
        return "a model, which has to be compiled first"
    if not path.exists():
        return "nothing of that name"
    return "a directory without one" if path.is_dir() else "a file"


def _is_model(path: Path) -> bool:
    named = str(path).startswith("pypi:") or path.suffix in (".gguf", ".pt2")
    return named or (path / "config.json").is_file()


def _instead_of(path: Path) -> str:
    if _is_model(path):
        return f"specc compile {path} -o ART, and then name ART"
    if path.is_file() and (path.parent / "manifest.json").is_file():
        return f"name the folder: {path.parent}"
    near = {f.parent.stem: f.parent for f in path.parent.glob("*/manifest.json")}
    close = difflib.get_close_matches(path.stem, sorted(near), n=1)
    if close and not path.exists():
        return f"did you mean {near[close[0]]}?"
    return "make one with: specc compile MODEL -o ART"


def _versions(root: Field) -> tuple[int, int]:
    """Schema and ABI, first of all: what newer ones mean is not for this version to guess."""
    if not isinstance(root.value, dict) or "schema_version" not in root.value:
        raise ArtifactError(
            "SPECC-E0501", "not a manifest of specc", where=root.path,
            expected="an object with a schema_version",
            cure="make one with: specc compile MODEL -o ART",
        )  # fmt: skip
    return _version(root, "schema_version", SCHEMA_VERSION), _version(root, "abi", MODEL_ABI)


def _version(root: Field, name: str, known: int) -> int:
    version = root[name].integer()
    if version != known:
        newer = version > known
        raise ArtifactError(
            "SPECC-E0503",
            f"the artifact is too {'new' if newer else 'old'} for this specc",
            where=f"{root.path}.{name}",
            expected=str(known),
            found=str(version),
            cure="update specc" if newer else "compile the artifact again",
        )
    return version


def _device(at: Field) -> Device:
    return Device(at["type"].string(), at["arch"].string(), at["isa"].string())


def _model(at: Field) -> Model:
    vocab_size = at["vocab_size"].integer(1, _MOST_TOKENS)
    bos, texts = at.get("bos_token_id"), at.get("max_num_seqs")
    return Model(
        vocab_size=vocab_size,
        max_model_len=at["max_model_len"].integer(1, _MOST_TOKENS),
        prefill_chunk=at["prefill_chunk"].integer(1, _MOST_TOKENS),
        eos_token_ids=at["eos_token_ids"].integers(0, vocab_size - 1),
        bos_token_id=None if bos.value is None else bos.integer(0, vocab_size - 1),
        add_bos=at.get("add_bos").boolean(default=False),
        max_num_seqs=1 if texts.value is None else texts.integer(1, 1 << 16),
    )


def _draft_lengths(at: Field) -> tuple[int, ...]:
    lengths = at.integers(0, 1024)
    if not lengths or lengths[0] != 0 or list(lengths) != sorted(set(lengths)):
        raise damaged(at.path, "an ascending list that begins with 0", str(list(lengths)))
    return lengths


def _drafter(at: Field) -> Drafter:
    state, named = at["state"], at.get("host_drafter")
    if state.string() not in STATES:
        raise damaged(state.path, ", ".join(STATES), state.string())
    if named.value is not None and named.string() not in HOST_DRAFTERS:
        raise damaged(named.path, f"{', '.join(HOST_DRAFTERS)} or null", named.string())
    extend, minimum, drawn = at.get("extend"), at.get("min_length"), at.get("draft_rows")
    trimmed = at.get("draft_vocab_size")
    least = 0 if minimum.value is None else minimum.integer(0, 1)
    if extend.value is not None and (state.string() != "own" or not least):
        raise damaged(extend.path, "null, or state own and min_length 1", extend.string())
    depths = at.get("depths").integers(1, 1024, default=())
    if list(depths) != sorted(set(depths)):
        raise damaged(f"{at.path}.depths", "an ascending list", str(list(depths)))
    return Drafter(
        kind=at["kind"].string(),
        state=state.string(),
        lag=at["lag"].integer(0, 1 if state.string() == "own" else 0),
        extend=None if extend.value is None else extend.string(),
        min_length=least,
        draft_rows=0 if drawn.value is None else drawn.integer(0, 1 << 20),
        host_drafter=None if named.value is None else named.string(),
        depths=depths,
        layers=at.get("layers").integers(0, 1 << 20, default=()),
        draft_vocab_size=0 if trimmed.value is None else trimmed.integer(0, _MOST_TOKENS),
        options=at.get("options").mapping({}),
    )


def _rounds(
    at: Field, lengths: tuple[int, ...], drafter: Drafter, functions: Mapping[str, Function]
) -> tuple[Round, ...]:
    """One for each K, or for each K and depth; a round without drafts has no depth."""
    rounds = []
    for item in at.items():
        k, depth = item["k"].integer(0), item["depth"].integer(0)
        named = [item["function"], *(item.get(piece) for piece in ("propose", "verify", "commit"))]
        function, propose, verify, commit = (_function_name(at, functions) for at in named)
        if function is None:
            raise damaged(named[0].path, "the name of a function", "null")
        nodes = item.get("nodes")
        verified = k if nodes.value is None else nodes.integer(k, 1024)
        rounds.append(Round(function, k, depth, verified, propose, verify, commit))
    expected = [(k, d) for k in lengths for d in (drafter.depths if k else ()) or (0,)]
    found = sorted((r.k, r.depth) for r in rounds)
    if found != expected:
        raise damaged(at.path, f"rounds of (k, depth) {expected}", str(found))
    if drafter.host_drafter and not drafter.host and not all(r.verify for r in rounds):
        # (What a host drafter finds is verified by itself.)
        raise damaged(at.path, "the verify function of each round", "none")
    return tuple(rounds)


def _function_name(at: Field, functions: Mapping[str, Function]) -> str | None:
    if at.value is None:
        return None
    if at.string() not in functions:
        raise damaged(at.path, "the name of a function", at.string())
    return at.string()


def _function(name: str, at: Field) -> Function:
    return Function(
        name,
        tuple(_value(item) for item in at["inputs"].items()),
        tuple(_value(item) for item in at["outputs"].items()),
        len(at["plan"].items()),
    )


def _value(at: Field) -> Value:
    shape = tuple("T" if d.value == "T" else d.integer(0) for d in at["shape"].items())
    return Value(at["name"].string(), at["dtype"].dtype(), shape)


def _file(name: str, at: Field) -> FileEntry:
    check_inner(name, at.path)
    return FileEntry(name, at["bytes"].integer(0), at["sha256"].string())
