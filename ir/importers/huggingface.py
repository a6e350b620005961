"""Hugging Face folders -> a speculative program, by tracing transformers' own code for the architecture.

Only code that ships with transformers runs (`trust_remote_code=False`); weights are read from safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specc.errors import ModelError
from specc.ir.importers import attention, experts, refusals, rope
from specc.ir.importers.exported import import_exported
from specc.ir.importers.quiet import quiet
from specc.ir.importers.rows import check_rows
from specc.ir.importers.traced import traced
from specc.ir.program import ModelInfo, SpeculativeProgram
from specc.ir.weights import Weight, WeightStore

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Rows(nn.Module):
    """tokens i64[T], positions i64[T] -> logits f32[T, V]: one sequence, no batch, no cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # Without a mask of ones transformers looks for packed sequences in position_ids, which depends on data.
        output = self.model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False,
            attention_mask=torch.ones_like(tokens)[None],
        )  # fmt: skip
        logits: torch.Tensor = output.logits[0]
        return logits


def import_model(
    model: PreTrainedModel, name: str, max_model_len: int | None = None,
    weights: Mapping[str, Weight] | None = None,
) -> SpeculativeProgram:  # fmt: skip
    """Trace a loaded causal language model (float32; eval mode is set). The model is left as it was.

    `max_model_len` decides what depends on the longest sequence (see `rope`). `weights`, if given, are used in place of
    the parameters of `model`, which then need not hold anything.
    Raises ModelError (SPECC-E02xx) for what cannot work, naming the layer.
    """
    attention.register()
    experts.register()
    refusals.refuse_architecture(model.config.get_text_config().to_dict(), name)
    model.train(False)
    with _as_specc(model), rope.frozen(model, max_model_len) as choice:
        function, constants = traced(model, lambda: import_exported(_trace(model, name)))
    if weights is not None:
        constants = {n: weights.get(n, w) for n, w in constants.items()}
    info = model_info(model)
    if choice.limit:
        info = replace(info, max_position=choice.limit)
    program = SpeculativeProgram(
        name, info, {function.name: function}, weights=WeightStore(constants),
        provenance={"rope": choice.text} if choice.text else {},
    )  # fmt: skip
    check_rows(program)
    return program


@contextmanager
def _as_specc(model: PreTrainedModel) -> Iterator[None]:
    """Within this context the model's attention and experts are specc's."""
    before = model.config._attn_implementation
    model.set_attn_implementation(attention.NAME)
    with experts.selected(model):
        yield
    model.set_attn_implementation(before)


def _trace(model: PreTrainedModel, name: str) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4096)
    tokens = torch.arange(6) % int(model.config.get_text_config().vocab_size)
    try:
        with torch.no_grad(), quiet("torch"):
            return torch.export.export(
                _Rows(model), (tokens, torch.arange(6)),
                dynamic_shapes={"tokens": {0: rows}, "positions": {0: rows}}, strict=False,
            )  # fmt: skip
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "SPECC-E0201",
            f"{model.config.model_type} cannot be traced: {_reason(error)}",
            where=name,
            expected="code whose steps do not depend on values or on the number of tokens",
            cure="choose another architecture; `specc doctor` lists those that work",
        ) from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Constraints violated"):
        return "its code needs a fixed number of tokens (it loops over rows or builds its own mask)"
    return lines[0] if lines else type(error).__name__


def model_info(model: PreTrainedModel) -> ModelInfo:
    """Facts that outlive the graph, from the configuration."""
    config: Any = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    ends = () if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (eos,)
    return ModelInfo(
        architecture=str(config.model_type),
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        max_position=int(getattr(config, "max_position_embeddings", 0) or 0),
        eos_token_ids=ends,
        bos_token_id=getattr(config, "bos_token_id", None),
    )
