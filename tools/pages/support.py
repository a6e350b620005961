"""The page of what is tested: read from the lists that the tests go through, without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from specc.checks import WORKING
from specc.method_table import MLC_METHODS, TRAINED

HOST = "none, ngram, suffix"
STRUCTURE = "mtp:structure"
GRAPH = (STRUCTURE, "draft_model", "layerskip", "eagle:adaptive")
COLUMNS = (HOST, *GRAPH, *TRAINED)
PROGRAM, NATIVE = "program", "native"

_INTRO = """\
# What is tested

A cell says what tests do with an architecture (transformers' `model_type`) and a method, on tiny models with random
weights:

- `program`: the rewritten program is evaluated, and has transformers' logits, or makes its tokens;
- `native`: the same, and it is compiled by the inductor backend and run by the engine, and makes the same tokens;
- an empty cell: no test tries this pair. It may work: methods see programs, not architectures. `specc verify` tells.

Architectures that are not listed are judged when they are read (`specc doctor MODEL`): what cannot work is refused by a
code from [E0203](errors.md#specc-e0203) on.
"""


def page(root: Path) -> str:
    """docs/support.md for the tests at `root`."""
    tests = root / "tests"
    tried: dict[tuple[str, str], str] = {}

    def note(how: str, kinds: Iterable[str], methods: Iterable[str]) -> None:
        tried.update({(k, _column(m)): how for k in kinds for m in methods})

    families = _value(tests / "ir/importers/tiny_models.py", "FAMILIES")
    assert isinstance(families, ast.Dict)
    kinds = sorted({_first(v) for v in families.values})
    assert set(kinds) == set(WORKING), set(kinds) ^ set(WORKING)
    note(PROGRAM, kinds, [HOST])
    pipelines = tests / "passes/test_pipelines.py"
    some = _value(pipelines, "FAMILIES")
    assert isinstance(some, ast.Call)
    note(PROGRAM, ast.literal_eval(some.args[1]), _names(pipelines, "METHODS"))
    note(PROGRAM, ["llama"], _names(tests / "passes/test_trained_drafters.py", "DRAFTERS"))
    note(NATIVE, ["llama"], _names(tests / "backends/test_inductor.py", "METHODS"))
    note(NATIVE, ["llama"], _names(tests / "passes/knowing_drafters.py", "MAKERS"))

    note(PROGRAM, _names(tests / "passes/test_keep_structure.py", "FAMILIES"), [STRUCTURE])
    note(NATIVE, ["llama"], [STRUCTURE])  # tests/backends/test_structure.py

    gguf = _value(tests / "ir/importers/test_gguf.py", "ARCHITECTURES")
    assert isinstance(gguf, ast.Dict)
    files = {
        _first(v): ast.literal_eval(k) for k, v in zip(gguf.keys, gguf.values, strict=True) if k
    }
    lines = [
        _INTRO,
        f"| architecture | as GGUF | {' | '.join(COLUMNS)} |",
        f"|---|---{'|---' * len(COLUMNS)}|",
    ]
    lines += [
        f"| {kind} | {files.get(kind, '')} | {' | '.join(tried.get((kind, c), '') for c in COLUMNS)} |"
        for kind in kinds
    ]
    types = ", ".join(_names(tests / "ir/importers/test_gguf.py", "KINDS"))
    formats = ", ".join(sorted(_names(tests / "ir/importers/drafters/test_parity.py", "DRAFTERS")))
    native = ", ".join(_names(tests / "ir/importers/drafters/test_parity.py", "NATIVE"))
    compiled = ", ".join(_names(tests / "passes/test_trained_drafters.py", "LAYERS"))
    through_tvm = _names(tests / "backends/test_tvm.py", "FAMILIES_TRIED")
    methods = ", ".join(_names(tests / "backends/test_tvm_engine.py", "METHODS"))
    lines += [
        "", f"By `--backend tvm`, with transformers' tokens: {', '.join(through_tvm)}; and, run by the engine, llama "
        f"with {methods}, mtp:structure, trees of suffix and eagle3, and trained drafters that know their text.",
        "", "Several texts in one pass (`--max-num-seqs`), each with the tokens that it makes alone: llama with ngram, "
        "trees of ngram and suffix, mtp:structure, "
        f"{', '.join(_names(tests / 'runtime/test_batch.py', 'IN_GRAPH'))}, also with a host drafter beside it, by the "
        "inductor backend; and with ngram by the tvm backend.",
        "", *_other_ways(tests),
        "", f"Tensor types of GGUF files: {types}.", "",
        f"Layouts of trained drafters, each with the drafts that eager code on the checkpoint makes: {formats}.", "",
        f"MTP layers in a model's own files, read likewise: {native}. Programs draft with those of {compiled}, and an "
        "artifact with the latent attention and the experts of deepseek-v3.", "",
        "A `.pt2` is tested with decoders of our own, written in several ways (`tests/ir/importers/test_pt2.py`).", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _other_ways(tests: Path) -> list[str]:
    """What is tried with other devices and formats, and on what: none of it on the hardware."""
    through_onnx = ", ".join(_names(tests / "backends/test_onnx.py", "TEN"))
    on_acl = ", ".join(_names(tests / "backends/test_acl.py", "METHODS"))
    return [
        f"By `--device onnx`, in onnxruntime, with transformers' tokens: {through_onnx} with ngram; and, "
        "run by the engine, llama with ngram and draft_model. "
        "Graphs of trained drafters make the drafts of the program that they come from.",
        "", f"By `--device ascend:SOC`, on a double of CANN (no NPU): llama with {on_acl}. `verified_on_npu: false`.",
        "", "By `--device cuda:ARCH`, on a double of NVIDIA's driver with Triton's interpreter (no GPU): llama with "
        "draft_model in f32, at temperature 0 and above, and with eagle3 in bf16. Of other methods the plans are "
        "checked, and of quantised products the kernels. With `--backend tvm` the same CUDA text compiled for a CPU: "
        "llama with draft_model. `verified_on_gpu: false`.",
        "", f"By `--format mlc`, on an engine written from MLC's ABI (not MLC's own, and no phone): llama with "
        f"{', '.join(MLC_METHODS)}, and gpt2 as objects for phones, of which none was run. `verified_on_gpu: false`.",
    ]  # fmt: skip


def _column(method: str) -> str:
    """The column of a method, or of a test's name that begins with one."""
    method = HOST if method in ("none", "ngram", "suffix", HOST) else method.split("-")[0]
    assert method in COLUMNS, method
    return method


def _value(path: Path, name: str) -> ast.expr:
    """What a module assigns to `name`."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is not None and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return value  # type: ignore[no-any-return]
    raise LookupError(f"{path} has no {name}: tell tools/pages/support.py where the list is now")


def _names(path: Path, name: str) -> list[str]:
    """The words of a list, or the keys of a dictionary."""
    value = _value(path, name)
    return (
        [ast.literal_eval(k) for k in value.keys if k]
        if isinstance(value, ast.Dict)
        else ast.literal_eval(value)
    )


def _first(node: ast.expr) -> str:
    assert isinstance(node, ast.Tuple)
    return str(ast.literal_eval(node.elts[0]))
