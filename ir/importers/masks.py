"""Give each attention the window that its mask has, and drop the masks."""

from __future__ import annotations

from torch import fx

from specc.errors import ModelError
from specc.ir.dialect import ops


def resolve_masks(graph: fx.Graph) -> None:
    """Replace each `masked_by(attention, mask)` by the attention, with the mask's window as the attention's.

    Raises ModelError if a mask was computed on (an added bias, for one) or contradicts the attention's own window.
    """
    for node in list(graph.nodes):
        if node.target is not ops.masked_by.default:
            continue
        attention, mask = node.args
        layer = str(attention.meta.get("origin", "")) or f"layer {attention.args[7]}"
        if mask.target is not ops.mask.default:
            raise ModelError(
                "SPECC-E0214",
                f"the attention mask is changed before it is used ({mask.target})",
                where=layer,
                expected="a causal or sliding-window mask, used as it is",
                cure="choose a model without biases in its mask (ALiBi, for one)",
            )
        window, own = mask.args[0], attention.args[5]
        if window < 0:
            raise ModelError(
                "SPECC-E0213",
                "the attention mask is neither causal nor a causal sliding window",
                where=layer,
                expected="causal, or causal within a sliding window",
                found="a bidirectional or chunked mask",
                cure="choose a model with causal or sliding-window attention",
            )
        if own not in (0, window):
            raise ModelError(
                "SPECC-E0215",
                "the attention's window is not the mask's",
                where=layer,
                expected=f"window {own} (attention)",
                found=f"window {window} (mask)",
                cure="correct sliding_window in config.json",
            )
        attention.args = (*attention.args[:5], window, *attention.args[6:])
        node.replace_all_uses_with(attention)
        graph.erase_node(node)
