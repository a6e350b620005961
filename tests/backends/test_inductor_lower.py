"""What the inductor backend decides before Inductor runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.backends import pack_weights
from specc.backends.cuda import lower as cuda
from specc.backends.inductor import leaves, lower
from specc.backends.inductor_leaf import code_behind
from specc.ir import Encoding, Function, Role, SpeculativeProgram, TensorType, Weight
from specc.ir.dialect import ops
from specc.ir.graphs import Builder
from specc.passes import pipelines
from tests.passes import toy

aten = torch.ops.aten
ROWS = TensorType("f32", ("T", 4))


def _minus(*order: str, name: str = "leaf", rows: TensorType = ROWS) -> Function:
    """X - y, with inputs in this order."""
    builder = Builder()
    inputs = {i: builder.input(i, rows) for i in order}
    y = builder.op(aten.sub.Tensor, inputs["x"], inputs["y"], type_=rows)
    return Function(name, Role.LEAF, builder.output(y), ("z",))


def _identity(function: Function, isa: str = "x86-64-v3") -> str:
    return lower._identity(function, isa)


def test_the_order_of_arguments_tells_leaves_apart() -> None:
    assert _identity(_minus("x", "y")) != _identity(_minus("y", "x"))
    assert _identity(_minus("x", "y")) == _identity(_minus("x", "y", name="other"))
    wider = TensorType("f32", ("T", 8))
    assert _identity(_minus("x", "y")) != _identity(_minus("x", "y", rows=wider))
    assert _identity(_minus("x", "y")) != _identity(_minus("x", "y"), "x86-64-v4")


def test_what_inductor_is_told_tells_leaves_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before, options = _identity(_minus("x", "y")), leaves.options
    changed = lambda isa, folder: options(isa, folder) | {"cpp.threads": 2}  # noqa: E731
    monkeypatch.setattr(leaves, "options", changed)
    assert _identity(_minus("x", "y")) != before


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes one of specc's modules read as if somebody had changed it."""
    read = Path.read_text

    def edited(module: str) -> None:
        def text(path: Path, *args: Any) -> str:
            return read(path, *args) + "# edited\n" * path.as_posix().endswith(f"/{module}.py")

        monkeypatch.setattr(Path, "read_text", text)
        code_behind.cache_clear()

    yield edited
    monkeypatch.undo()
    code_behind.cache_clear()


@pytest.mark.parametrize("identity", [lower._identity, cuda._identity], ids=["cpu", "cuda"])
def test_an_edit_of_what_generates_leaves_tells_them_apart(
    identity: Callable[[Function, str], str], edit: Callable[[str], None]
) -> None:
    """And one of anything else does not."""
    own = ["inductor/shims"] if identity is lower._identity else ["cuda/fakes", "cuda/kernels"]
    before = identity(_minus("x", "y"), "x86-64-v3")
    edit("toolchain")
    assert identity(_minus("x", "y"), "x86-64-v3") == before
    found = {before}
    modules = ["exported_leaf", "inductor_leaf", "ir/dialect", "ir/graphs", *own]
    for module in modules:
        edit(module)
        found.add(identity(_minus("x", "y"), "x86-64-v3"))
    assert len(found) == 1 + len(modules)


def test_generated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def generate(function: Function, isa: str) -> str:
        made.append(function.name)
        return f"// {function.name} {isa}"

    monkeypatch.setattr(leaves, "generate", generate)
    monkeypatch.setenv("SPECC_CACHE_DIR", str(tmp_path))
    first = lower._source(_minus("x", "y"), "x86-64-v3")
    assert lower._source(_minus("x", "y", name="b"), "x86-64-v3") == first
    lower._source(_minus("y", "x"), "x86-64-v3")
    assert made == ["leaf", "leaf"]


def _lowered(program: SpeculativeProgram) -> SpeculativeProgram:
    return pipelines.host("ngram", toy.SHAPE, {})(program)


def test_matrices_that_cannot_be_packed_are_named() -> None:
    program = _lowered(toy.decoder(2))
    assert pack_weights.unpacked(program) == []

    def shared(leaf: Function) -> Function:
        """Adds the matrix to itself first, so that it is not only multiplied with."""
        from specc.ir.graphs import copy_graph

        graph, _ = copy_graph(leaf.graph)
        linear = next(n for n in graph.nodes if n.target is aten.linear.default)
        matrix = linear.args[1]
        with graph.inserting_before(linear):
            graph.call_function(aten.sum.default, (matrix,)).meta["type"] = TensorType("f32", ())
        return Function(leaf.name, leaf.role, graph, leaf.outputs)

    spoilt = program.replacing(shared(program.functions["layer.0"]))
    assert pack_weights.unpacked(spoilt) == ["w0", "w1"]
    packed = pack_weights.pack_weights(spoilt)
    assert "w0" in packed.weights
    assert "head#f32" in packed.weights


def _product(matrix: TensorType, x: TensorType) -> SpeculativeProgram:
    """The toy decoder with one more leaf, x times a matrix of its own, and a function that calls it."""
    builder = Builder()
    y = builder.op(
        aten.linear.default, builder.input("x", x), builder.input("w", matrix),
        type_=TensorType(x.dtype, ("T", matrix.at()[0])),
    )  # fmt: skip
    leaf = Function("product", Role.LEAF, builder.output(y), ("y",))
    builder = Builder()
    results = builder.call(leaf, [builder.input("x", x), builder.weight("mine", matrix)])
    caller = Function("caller", Role.ROUND, builder.output(*results), ("y",))
    program = _lowered(toy.decoder(1)).with_functions(leaf, caller)
    mine = {"mine": Weight.of(torch.zeros(matrix.at(), dtype=torch.bfloat16))}
    return replace(program, weights=program.weights.added(mine))


def test_matrices_of_bf16_are_packed_and_leaves_convert_around_the_product() -> None:
    program = _product(TensorType("bf16", (20, 6)), TensorType("bf16", ("T", 6)))
    graph = pack_weights.pack_weights(program).functions["product"].graph
    x, w = torch.randn(3, 6).bfloat16(), torch.randn(20, 6).bfloat16()
    (found,) = torch.fx.GraphModule({}, graph)(x, Encoding.parse("bf16").encode(w.float()))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.nn.functional.linear(x.double(), w.double()).bfloat16())


def test_what_is_packed_already_is_left_alone() -> None:
    program = _lowered(toy.decoder(1))
    once = pack_weights.pack_weights(program)
    twice = pack_weights.pack_weights(once)
    assert str(twice) == str(once)
    assert twice.weights["head#f32"] is once.weights["head#f32"]


def test_packing_does_not_overwrite() -> None:
    program = _lowered(toy.decoder(1))
    mine = {"head#f32": Weight.of(torch.zeros(1, 4, 16))}
    taken = replace(program, weights=program.weights.added(mine))
    with pytest.raises(Exception, match="SPECC-E0303"):
        pack_weights.pack_weights(taken)


def test_the_dialect_has_the_packed_operations() -> None:
    """Whatever is imported: they belong to the language, not to a backend."""
    import subprocess
    import sys

    code = "import specc.ir, torch, sys; torch.ops.specc.linear.default; torch.ops.specc.embedding.default; "
    code += "sys.exit(any('specc.backends' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert ops.linear.default is torch.ops.specc.linear.default
