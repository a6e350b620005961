"""Hugging Face folders -> a speculative program, by tracing transformers' own code for the architecture.

Only code that ships with transformers runs (`trust_remote_code=False`); weights are read from safetensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specc.errors import ModelError
from specc.ir.importers import attention
from specc.ir.importers.exported import import_exported
from specc.ir.program import ModelInfo, SpeculativeProgram
from specc.ir.weights import WeightStore

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


def import_model(model: PreTrainedModel, name: str) -> SpeculativeProgram:
    """Trace a loaded causal language model (eval mode is set, attention implementation is switched).

    Raises ModelError (SPECC-E02xx) for what cannot work, naming the layer.
    """
    attention.register()
    model = model.eval()
    model.set_attn_implementation(attention.NAME)
    rows = torch.export.Dim("rows", min=2, max=4096)
    tokens = torch.arange(6)
    try:
        with torch.no_grad():
            exported = torch.export.export(
                _Rows(model), (tokens, torch.arange(6)),
                dynamic_shapes={"tokens": {0: rows}, "positions": {0: rows}}, strict=False,
            )  # fmt: skip
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "SPECC-E0201",
            f"{model.config.model_type} cannot be traced: {str(error).splitlines()[0]}",
            where=name,
            cure="choose another architecture; `specc doctor` lists those that work",
        ) from error
    function, weights = import_exported(exported)
    return SpeculativeProgram(
        name, model_info(model), {function.name: function}, weights=WeightStore(weights)
    )


def model_info(model: PreTrainedModel) -> ModelInfo:
    """Facts that outlive the graph, from the configuration."""
    config: Any = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    ends = () if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (eos,)
    layers = [n for n, m in model.named_modules() if hasattr(m, "layer_idx")]
    return ModelInfo(
        architecture=str(config.model_type),
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        max_position=int(getattr(config, "max_position_embeddings", 0) or 0),
        eos_token_ids=ends,
        bos_token_id=getattr(config, "bos_token_id", None),
        layer_paths=tuple(layers),
    )


def load_folder(folder: Path) -> PreTrainedModel:
    """Load a folder in Hugging Face form as float32. Raises ModelError (SPECC-E0202) if it is not one."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (heavy)

    if not (folder / "config.json").is_file():
        raise ModelError(
            "SPECC-E0202",
            "not a Hugging Face model folder",
            where=str(folder),
            expected="config.json and *.safetensors",
            cure="pass the folder that holds config.json",
        )
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True,
        local_files_only=True,
    )  # fmt: skip
    return model
