import pytest
import torch
from torch import fx

from specc.errors import InvalidProgramError
from specc.ir import TensorType
from specc.ir.graphs import Builder
from specc.ir.infer import infer_types

aten = torch.ops.aten


def _type(target: object, *args: object, x: TensorType, **kwargs: object) -> object:
    builder = Builder()
    node = builder.op(target, builder.input("x", x), *args)  # type: ignore[arg-type]
    builder.output(node)
    infer_types(builder.graph)
    return node.meta["type"]


@pytest.mark.parametrize("width", [5, 7, 11, 13, 5 * 7])
def test_rows_are_told_from_widths_of_the_same_number(width: int) -> None:
    assert str(_type(aten.cos.default, x=TensorType("f32", ("T", width)))) == f"f32[T, {width}]"
    assert str(_type(aten.t.default, x=TensorType("f32", ("T", width)))) == f"f32[{width}, T]"
    assert str(_type(aten.t.default, x=TensorType("f32", ("S", width)))) == f"f32[{width}, S]"


def test_results_of_several_types() -> None:
    found = _type(aten.topk.default, 2, x=TensorType("bf16", ("T", 4)))
    assert found == (TensorType("bf16", ("T", 2)), TensorType("i64", ("T", 2)))


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.reshape.default, [[-1]]),  # 2 T
        (aten.constant_pad_nd.default, [[0, 0, 1, 0]]),  # T + 1
        (aten.slice.Tensor, [0, 0, 6]),  # min(T, 6)
    ],
)
def test_other_functions_of_rows_are_refused(target: object, args: list[object]) -> None:
    with pytest.raises(InvalidProgramError, match="SPECC-E0302 the size of"):
        _type(target, *args, x=TensorType("f32", ("T", 2)))


def test_dtypes_that_programs_lack_are_refused() -> None:
    x = TensorType("f32", ("T", 2))
    with pytest.raises(InvalidProgramError, match="SPECC-E0301") as error:
        _type(aten.view_as_complex.default, x=x)
    assert error.value.found == "complex64"


def test_operations_that_cannot_run_are_refused_with_their_place() -> None:
    builder = Builder()
    x = builder.input("x", TensorType("f32", ("T", 2)))
    node = builder.op(aten.mm.default, x, x)
    node.meta["origin"] = "layers.3.mlp"
    builder.output(node)
    with pytest.raises(InvalidProgramError) as error:
        infer_types(builder.graph)
    assert (error.value.code, error.value.where) == ("SPECC-E0301", "layers.3.mlp")
    assert isinstance(node, fx.Node)
