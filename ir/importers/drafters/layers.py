"""Decoder layers of drafters, and what they share with their target: embedding and head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from specc.errors import ModelError
from specc.ir.importers.drafters.files import Config, Tensors
from specc.ir.importers.drafters.spec import Attention, LatentAttention, Layer, Mlp, Ownership
from specc.ir.importers.drafters.target import Target
from specc.ir.types import TensorType
from specc.ir.weights import Weight, content_hash

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")


@dataclass
class Parts:
    """What a reader has at hand, and the weights it has collected under normalised names."""

    config: Config
    tensors: Tensors
    target: Target
    weights: dict[str, Weight] = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)
    unit_offset: bool = False
    """Norms multiply by 1 + weight, which is made into the weight."""

    def take(self, source: str, shape: list[int], name: str = "") -> Weight:
        """Collect a tensor under `name`, or under the name it has."""
        weight = self.tensors.take(source, shape)
        self.weights[name or source] = weight
        return weight

    def take_norm(self, source: str, size: int, name: str) -> None:
        """Collect the weight of a norm of `size` channels."""
        weight = self.take(source, [size], name)
        if self.unit_offset:
            self.weights[name] = weight.derive("1+", weight.type, lambda t: 1.0 + t)

    def take_rows(self, source: str, shape: list[int], name: str) -> Weight:
        """The same for a table with a row for each id, which may be padded at its end."""
        found = list(self.tensors.shape(source))
        padded = found[1:] == shape[1:] and found[0] > shape[0] and found[0] % 64 == 0
        stored = self.tensors.take(source, found if padded else shape)
        self.weights[name] = weight = _rows(stored, shape) if padded else stored
        return weight


ReadLatent = Callable[[Parts, str, str, int, int], LatentAttention]
"""Takes `SOURCE.*` under `name`, given the width of what it gives and of what it reads."""


def window_of(config: Config, index: int) -> int:
    """How far back layer `index` sees, 0 for all, from layer_types, sliding_window and use_sliding_window."""
    types = config.get("layer_types", [])
    window = config.get("sliding_window", 0)
    used = config.get("use_sliding_window")
    if not types:
        if used:
            raise config.bad(
                "use_sliding_window", "layer_types, which say which layers have a window"
            )
        return 0
    count = config.integer("num_hidden_layers")
    if not isinstance(types, list) or len(types) < count:
        raise config.bad("layer_types", f"a list of {count} kinds of layers")
    if types[index] == "full_attention":
        return 0
    if types[index] != "sliding_attention":
        raise config.bad("layer_types", "full_attention or sliding_attention")
    if used is False or not isinstance(window, int) or window < 1:
        raise config.bad("sliding_window", "a window, since a layer is of type sliding_attention")
    return window


def attention_sizes(config: Config, hidden: int) -> tuple[int, int, int]:
    """Heads, key and value heads, and their width."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.bad("num_key_value_heads", f"a divisor of {heads}")
    return heads, kv_heads, config.integer("head_dim", hidden // heads)


def read_attention(
    parts: Parts, source: str, name: str, hidden: int, input_size: int, *,
    window: int = 0, causal: bool = True, gated: bool = False, window_at_anchor: bool = False,
) -> Attention:  # fmt: skip
    """Take `SOURCE.{q,k,v,o}_proj` and what norms and biases there are beside them."""
    config, tensors = parts.config, parts.tensors
    heads, kv_heads, dim = attention_sizes(config, hidden)
    bias = config.flag("attention_bias") or f"{source}.q_proj.bias" in tensors
    output_bias = f"{source}.o_proj.bias" in tensors
    qk_norm = f"{source}.q_norm.weight" in tensors
    for which, rows in (
        ("q", heads * dim * (2 if gated else 1)),
        ("k", kv_heads * dim),
        ("v", kv_heads * dim),
    ):
        parts.take(
            f"{source}.{which}_proj.weight", [rows, input_size], f"{name}.{which}_proj.weight"
        )
        if bias:
            parts.take(f"{source}.{which}_proj.bias", [rows], f"{name}.{which}_proj.bias")
    parts.take(f"{source}.o_proj.weight", [hidden, heads * dim], f"{name}.o_proj.weight")
    if output_bias:
        parts.take(f"{source}.o_proj.bias", [hidden], f"{name}.o_proj.bias")
    if qk_norm:
        parts.take_norm(f"{source}.q_norm.weight", dim, f"{name}.q_norm.weight")
        parts.take_norm(f"{source}.k_norm.weight", dim, f"{name}.k_norm.weight")
    return Attention(
        heads, kv_heads, dim, input_size, bias, output_bias, qk_norm, window, window_at_anchor, causal, gated
    )  # fmt: skip


def read_mlp(parts: Parts, source: str, name: str, hidden: int, size: int) -> Mlp:
    """Take `SOURCE.{gate,up,down}_proj`."""
    parts.config.only("mlp_bias", False)
    activation = str(parts.config.get("hidden_act", "silu"))
    if activation not in ACTIVATIONS:
        raise parts.config.bad("hidden_act", " or ".join(ACTIVATIONS))
    parts.take(f"{source}.gate_proj.weight", [size, hidden], f"{name}.gate_proj.weight")
    parts.take(f"{source}.up_proj.weight", [size, hidden], f"{name}.up_proj.weight")
    parts.take(f"{source}.down_proj.weight", [hidden, size], f"{name}.down_proj.weight")
    return Mlp(size, activation)


def read_layer(
    parts: Parts, source: str, index: int, hidden: int, *, input_norm: bool = True, paired: bool = False,
    norm_before_residual: bool = False, window: int | None = None, causal: bool = True,
    window_at_anchor: bool = False, latent: ReadLatent | None = None,
) -> Layer:  # fmt: skip
    """Take a whole layer from `SOURCE.*`.

    `paired`: it reads an embedding beside a feature (EAGLE-3's first); `latent`: reads its attention, which is latent.
    """
    name = f"layers.{index}"
    norms = ["post_attention_layernorm"]
    norms += ["input_layernorm"] if input_norm else []
    norms += ["hidden_norm"] if paired else []
    for norm in norms:
        parts.take_norm(f"{source}.{norm}.weight", hidden, f"{name}.{norm}.weight")
    attended = f"{source}.self_attn", f"{name}.self_attn", hidden, hidden * (2 if paired else 1)
    attention = latent(parts, *attended) if latent else read_attention(
        parts, *attended, window=window_of(parts.config, index) if window is None else window, causal=causal,
        window_at_anchor=window_at_anchor,
    )  # fmt: skip
    mlp = read_mlp(
        parts, f"{source}.mlp", f"{name}.mlp", hidden, parts.config.integer("intermediate_size")
    )
    return Layer(attention, mlp, input_norm, paired, norm_before_residual)


def read_embedding(parts: Parts, source: str, hidden: int, size: int) -> Ownership:
    """The embedding of `size` ids in the checkpoint, or the target's where there is none or an equal one.

    Raises ModelError (SPECC-E0274) if there is none and the target's has another width.
    """
    return _shared(parts, source, "embed_tokens.weight", [size, hidden], parts.target.embedding)


def read_head(
    parts: Parts, source: str, hidden: int, size: int, *, required: bool = False
) -> Ownership:
    """The head in the checkpoint, or the target's where there is an equal one, or none unless `required`."""
    if required:
        parts.tensors.shape(source)
    owner = _shared(parts, source, "lm_head.weight", [size, hidden], parts.target.head)
    if owner is not Ownership.OWN and parts.target.head_bias:
        raise foreign(parts, "head", "a head that only multiplies", "a bias in the target's")
    return owner


def read_rows_of_head(
    parts: Parts, source: str, hidden: int, size: int, ids: torch.Tensor | None
) -> Ownership:
    """The rows `ids` of the target's head, or all, for a checkpoint that says that it has none of its own.

    Raises ModelError (SPECC-E0278) if it has one after all, else as `read_head`.
    """
    if source in parts.tensors:
        raise parts.config.bad("lm_head_of_target", f"false, since there is a {source}")
    owner = read_head(parts, source, hidden, size)
    if ids is not None:
        parts.weights["lm_head.weight"] = parts.target.head.rows(ids.tolist())
    return owner


def _shared(parts: Parts, source: str, name: str, shape: list[int], theirs: Weight) -> Ownership:
    if source in parts.tensors:
        own = parts.take_rows(source, shape, name)
        if own.type != theirs.type or content_hash(own.load()) != content_hash(theirs.load()):
            return Ownership.OWN
        parts.weights[name] = theirs
        return Ownership.SAME
    rows, width = (int(d) for d in theirs.type.shape)
    if width != shape[1] or rows < shape[0]:
        raise ModelError(
            "SPECC-E0274",
            f"the drafter has no {source}, and the target's cannot stand in for it",
            where=parts.tensors.where,
            expected=f"{source} {shape}",
            found=f"the target's is [{rows}, {width}]",
            cure="take a complete checkpoint, or the target that it was trained for",
        )
    parts.weights[name] = theirs
    return Ownership.TARGET


def _rows(weight: Weight, shape: list[int]) -> Weight:
    return weight.derive(
        f"rows:{shape[0]}", TensorType("f32", tuple(shape)), lambda t: t[: shape[0]].contiguous()
    )


def check_target(
    parts: Parts, *, hidden: int, vocab: int, layers: int | None = None, taps: tuple[int, ...] = (),
    normed: bool = False,
) -> None:  # fmt: skip
    """Refuse a drafter that was trained for another target.

    `taps` in Hugging Face indices; the last, after the final norm, only where `normed`.
    Raises ModelError (SPECC-E0273).
    """
    target = parts.target
    facts = [("hidden size", hidden, target.hidden_size)]
    if layers is not None:
        facts.append(("number of layers", layers, target.num_layers))
    for what, theirs, ours in facts:
        if theirs != ours:
            raise foreign(parts, what, str(ours), str(theirs))
    # Padding: heads are rounded up to whole blocks, and not all copies of a model alike (151936 or 152064 rows).
    padded = vocab % 64 == 0 and vocab - target.rows < 512
    if vocab < target.vocab_size or (vocab > target.rows and not padded):
        raise foreign(parts, "vocabulary", f"{target.vocab_size} to {target.rows} ids", str(vocab))
    if any(t >= target.num_layers + normed for t in taps):
        raise foreign(
            parts, "taps", f"hidden states 0 to {target.num_layers - 1}", ", ".join(map(str, taps))
        )


def foreign(parts: Parts, what: str, expected: str, found: str) -> ModelError:
    """The refusal of a drafter that was trained for another target."""
    return ModelError(
        "SPECC-E0273", f"the drafter was trained for another target: its {what} differs",
        where=f"{parts.tensors.where}, for {parts.target.name}", expected=expected, found=found,
        cure="take a drafter of this very model; without --drafter, compile lists those that are public",
    )  # fmt: skip
