"""A user's own torch.export program (.pt2) -> a speculative program.

The program is a decoder: tokens i64[T] or i64[1, T] -> logits [T, V] or [1, T, V], T dynamic, and it may take positions
of the tokens' shape. Its attention is `scaled_dot_product_attention`; `pt2_patterns` finds heads, masks and positions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from specc.errors import ModelError
from specc.ir.dialect import ops
from specc.ir.graphs import results_of, type_of
from specc.ir.importers import pt2_patterns
from specc.ir.importers.exported import import_exported
from specc.ir.importers.folder import read_json
from specc.ir.importers.pt2_archive import check_archive
from specc.ir.importers.quiet import quiet
from specc.ir.importers.rows import check_rows
from specc.ir.program import Function, ModelInfo, SpeculativeProgram
from specc.ir.weights import WeightStore

aten = torch.ops.aten


def import_pt2(path: Path) -> tuple[SpeculativeProgram, Callable[[Tensor], Tensor]]:
    """The program in `path`, and a function tokens i64[T] -> logits f32[T, V] that runs the original.

    Raises ModelError: SPECC-E0261, E0262 (see `pt2_archive`), E0263 another signature, E0264 to E0267 (see
    `pt2_patterns`), E0216 if rows meet outside attention.
    """
    check_archive(path)
    exported = _load(path)
    shape = _Signature(exported, path)
    flat = shape.retrace(exported, pt2_patterns.attention)
    pt2_patterns.resolve(flat, shape.longest)
    function, weights = import_exported(flat)
    info = _info(function, shape.longest, path)
    program = SpeculativeProgram(
        path.stem, info, {function.name: function}, weights=WeightStore(weights)
    )
    check_rows(program)
    return program, _Original(path)


def _load(path: Path) -> ExportedProgram:
    try:
        with quiet("torch"):
            return torch.export.load(path)
    except Exception as error:
        raise ModelError(
            "SPECC-E0261",
            f"torch cannot load the export: {(str(error).splitlines() or [''])[0][:160]}",
            where=str(path),
            found=f"torch {torch.__version__}",
            cure="save it again with this version of torch",
        ) from error


class _Signature:
    """How the user's program takes tokens and gives logits."""

    def __init__(self, exported: ExportedProgram, path: Path) -> None:
        self.path = path
        specs = exported.graph_signature.input_specs
        names = [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT]
        nodes = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
        self.inputs = [nodes[n].meta.get("val") for n in names]
        if not 1 <= len(names) <= 2 or not all(self._is_rows(v) for v in self.inputs):
            raise self._refuse("inputs", ", ".join(f"{n}: {_shown(nodes[n])}" for n in names))
        logits = results_of(exported.graph)
        value = logits[0].meta.get("val")
        if len(logits) != 1 or not isinstance(value, Tensor) or not value.is_floating_point():
            raise self._refuse("outputs", ", ".join(map(_shown, logits)))
        rank = self.inputs[0].ndim + 1
        if value.ndim != rank or value.shape[-2] != self.inputs[0].shape[-1]:
            raise self._refuse("outputs", _shown(logits[0]))
        self.batched = rank == 3
        size = self.inputs[0].shape[-1]
        bounds = exported.range_constraints.get(size.node.expr)
        upper = getattr(bounds, "upper", None)
        self.longest = int(upper) if upper is not None and str(upper).isdigit() else 0
        """The largest T that the export allows; 0 for no limit."""

    @staticmethod
    def _is_rows(value: Any) -> bool:
        """i64[T] or i64[1, T] with T open."""
        if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.ndim not in (1, 2):
            return False
        return isinstance(value.shape[-1], torch.SymInt) and (
            value.ndim == 1 or value.shape[0] == 1
        )

    def _refuse(self, what: str, found: str) -> ModelError:
        return ModelError(
            "SPECC-E0263",
            f"the {what} of the exported program are not those of a decoder",
            where=str(self.path),
            expected="tokens i64[T] or i64[1, T] (and positions of the same shape) -> logits "
            "[T, V] or [1, T, V], with T dynamic",
            found=found,
            cure="export with dynamic_shapes={'tokens': {1: torch.export.Dim('rows', min=2)}}",
        )

    def retrace(
        self, exported: ExportedProgram, attention: Callable[..., Tensor]
    ) -> ExportedProgram:
        """The program as tokens i64[T], positions i64[T] -> logits f32[T, V], with `attention` for SDPA."""
        module = exported.module()
        for node in module.graph.nodes:
            if node.target is aten.scaled_dot_product_attention.default:
                node.target = attention
        module.recompile()
        rows = torch.export.Dim("rows", min=2, max=self.longest or 1 << 20)
        count = min(6, self.longest or 6)
        example = (torch.zeros(count, dtype=torch.int64), torch.arange(count))
        try:
            with torch.no_grad(), quiet("torch"):
                return torch.export.export(
                    _Rows(module, self.batched, len(self.inputs) == 2), example,
                    dynamic_shapes={"tokens": {0: rows}, "positions": {0: rows}}, strict=False,
                )  # fmt: skip
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                "SPECC-E0263",
                f"the export does not take every number of rows: {str(error)[:100]}",
                where=str(self.path),
                expected="T from 2 upwards",
                cure="export with a dynamic number of tokens, min=2",
            ) from error


def _shown(node: Any) -> str:
    value = node.meta.get("val")
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else str(type(value))


class _Rows(nn.Module):
    def __init__(self, model: nn.Module, batched: bool, with_positions: bool) -> None:
        super().__init__()
        self.model, self.batched, self.with_positions = model, batched, with_positions

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        inputs = (tokens, positions) if self.with_positions else (tokens,)
        if not self.batched:
            return self.model(*inputs).float()  # type: ignore[no-any-return]
        return self.model(*(i[None] for i in inputs))[0].float()  # type: ignore[no-any-return]


class _Original:
    """The user's program as a function of tokens; loaded when first called."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._module: nn.Module | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits f32[T, V] of tokens i64[T]."""
        if self._module is None:
            check_archive(self._path)
            exported = _load(self._path)
            shape = _Signature(exported, self._path)
            self._module = _Rows(exported.module(), shape.batched, len(shape.inputs) == 2)
        with torch.no_grad():
            logits: Tensor = self._module(tokens, torch.arange(len(tokens)))
        return logits


def _info(function: Function, longest: int, path: Path) -> ModelInfo:
    nodes = list(function.graph.nodes)
    layers = [n for n in nodes if n.target is ops.attention.default]
    tables = [n for n in nodes if n.target is aten.embedding.default and _is_tokens(n.args[1])]
    logits = type_of(results_of(function.graph)[0])
    hidden = type_of(tables[0]).shape[-1] if tables else 0
    ends = _ends(path.parent / "generation_config.json")
    return ModelInfo(
        architecture="exported",
        vocab_size=int(logits.shape[-1]),
        hidden_size=int(hidden),
        num_layers=len(layers),
        max_position=longest,
        eos_token_ids=ends,
    )


def _is_tokens(node: Any) -> bool:
    """Whether `node` is the tokens, in some shape."""
    while len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return bool(node.op == "placeholder" and node.name == "tokens")


def _ends(path: Path) -> tuple[int, ...]:
    """End-of-sequence ids from a generation_config.json beside the export, if there is one."""
    ends = read_json(path).get("eos_token_id") if path.is_file() else None
    found = ends if isinstance(ends, list) else [ends]
    return tuple(e for e in found if isinstance(e, int))
