"""How specc looks into a Hugging Face model: its attention and its masks, through transformers' own registries.

While a model is traced with `attn_implementation="specc"`, each attention layer becomes one `specc::attention` node and
each mask one `specc::mask` node that carries the window, so nothing about heads, scaling, windows, softcap or sinks has
to be guessed from arithmetic. A model whose code does not ask the registries cannot be seen into and is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from specc.errors import ModelError
from specc.ir import dialect

NAME = "specc"

_IGNORED = {
    "dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions",
    "output_hidden_states", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
    "output_router_logits", "layer_idx", "position_embeddings", "cache", "num_items_in_batch",
}  # fmt: skip
"""Arguments of the attention interface that do not change what is computed here."""


def register() -> None:
    """Make `attn_implementation="specc"` known to transformers. Idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, **rest: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, Dv]."""
    layer = int(getattr(module, "layer_idx", -1))
    unknown = {k for k, v in rest.items() if v is not None and k not in _IGNORED}
    if unknown:
        raise ModelError(
            "SPECC-E0211",
            f"attention has an argument that specc does not know: {', '.join(sorted(unknown))}",
            where=f"layer {layer} ({type(module).__name__})",
            cure="choose a model without it",
        )
    if attention_mask is None:
        raise ModelError(
            "SPECC-E0212",
            "attention without a mask made by transformers' mask interface",
            where=f"layer {layer} ({type(module).__name__})",
            cure="choose a decoder-only model that uses create_causal_mask",
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    output = dialect.ops.attention(
        query, key, value, s_aux, scale, int(sliding_window or 0), float(softcap or 0.0), layer
    )
    # Ties the node to its mask, so that the importer can compare windows; a number is added nowhere.
    return torch.ops.specc.masked_by(output, attention_mask), None


def _mask(
    batch_size: int, q_length: int, kv_length: int, *args: Any, mask_function: Any = None,
    **kwargs: Any,
) -> Tensor:  # fmt: skip
    """A `specc::mask` node in place of a [1, 1, T, T] tensor, with the window read off `mask_function`.

    A mask of another shape becomes a node with window -1: it is refused by whoever uses it, since transformers makes
    masks for all kinds of layer that an architecture may have, used or not.
    """
    del args, batch_size, q_length, kv_length, kwargs
    with (
        _disable_current_modes()
    ):  # the probe computes on real numbers while the model is being traced
        window = _window_of(mask_function)
    mask: Tensor = dialect.ops.mask(window, 0)
    return mask


_PROBE = 1 << 17
"""Distance beyond any window in use; windows are found by bisection below it."""


def _window_of(mask_function: Any) -> int:
    """0 for a causal mask, w for a causal sliding window of w, -1 for any other shape."""

    def sees(query: int, key: int) -> bool:
        return bool(mask_function(*map(torch.tensor, (0, 0, query, key))))

    query = 2 * _PROBE
    if not sees(query, query) or sees(query, query + 1) or sees(0, 1):
        return -1
    if sees(query, 0) and sees(query, query - _PROBE):
        return 0
    near, far = 0, _PROBE
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if sees(query, query - middle) else (near, middle)
    window = far
    # A chunked mask has the same extent at one query but not at the next.
    for other in (query + 1, query + window // 2, query + window + 3):
        if not sees(other, other - window + 1) or sees(other, other - window):
            return -1
    return window
