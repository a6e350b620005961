"""What a drafter checkpoint says, whatever format said it: one contract that passes build graphs from.

Every convention that differs between sources is normalised or is a field here. Tap indices are those of Hugging Face's
`output_hidden_states`: 0 is the embedding, j the output of layer j - 1, and the number of layers L stands for the
hidden state *after the final norm* (what feeds the head). Weights have these names and are f32, whoever owns them:

    embed_tokens.weight [V, H]          lm_head.weight [Vd, H]       d2t i64[Vd]: the target's id of each draft id
    fc.weight [H, inputs], fc.bias [H]  norm.weight [H]              rope.inv_freq [rotated / 2]
    input_norm.weight [A * Ht]          fc_norm.{tap}.weight [Ht]    hidden_norm.weight [H], after fc
    token_norm.weight [H]               feature_norm.weight [Ht]     before fc, where it takes tokens and features
    mask_hidden [A * Ht]
    layers.{i}.{input_layernorm,hidden_norm,post_attention_layernorm}.weight
    layers.{i}.self_attn.{q,k,v,o}_proj.{weight,bias}, .{q,k}_norm.weight
    layers.{i}.self_attn.{q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,...}: latent attention
    layers.{i}.mlp.{gate,up,down}_proj.weight, or of experts .mlp.gate.{weight [E, H],correction [E]},
        .mlp.experts.gate_up_proj [E, 2I, H], gates first, .mlp.experts.down_proj [E, H, I],
        .mlp.shared_expert.{gate,up,down}_proj.weight, .mlp.shared_gate.weight [1, H]
    markov_head.{markov_w1,markov_w2,gate_proj,joint_proj}.*, confidence_head.proj.*
    heads.{i}.blocks.{b}.{weight [H, H],bias [H]}, heads.{i}.lm_head.weight [V, H]

A linear's weight is [out, in]; a norm multiplies by its weight (where a source adds 1 to it, that is done already).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from specc.ir.weights import WeightStore


class Kind(StrEnum):
    """How a drafter drafts."""

    EAGLE = "eagle"
    """Features of the target, one layer, recycled: EAGLE-1 and EAGLE-2, whose weights are the same."""
    EAGLE3 = "eagle3"
    PEAGLE = "peagle"
    """EAGLE-3 that drafts all depths in one pass, unknown tokens and features masked."""
    MTP = "mtp"
    DFLASH = "dflash"
    DSPARK = "dspark"
    MEDUSA = "medusa"

    @property
    def method(self) -> str:
        """What `--method` calls it."""
        return "eagle3" if self is Kind.PEAGLE else str(self)


class Ownership(StrEnum):
    """Where an embedding or a head comes from. In all cases the weights hold it."""

    OWN = "own"
    TARGET = "target"
    """Not in the checkpoint: the target's is meant."""
    SAME = "same"
    """In the checkpoint, and equal to the target's by content, so the target's is used."""
    NONE = "none"
    """Not needed."""


class Recycle(StrEnum):
    """What a feature drafter feeds back as the feature of its next step."""

    NONE = "none"
    PRE_NORM = "pre_norm"
    """What the last layer gives, before `norm`."""
    POST_NORM = "post_norm"
    """What feeds the head."""


@dataclass(frozen=True)
class Rope:
    """Rotary positions as the drafter was trained with them; nothing is inherited from the target.

    The first `dim` channels of a head turn, by position times `rope.inv_freq`; cosines and sines are multiplied by
    `attention_scale`. `interleaved` pairs channels (0, 1), (2, 3), ...; otherwise (0, dim / 2), (1, dim / 2 + 1), ...
    `kind` and `theta` are for reports.
    """

    theta: float
    kind: str
    dim: int
    attention_scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention of one layer; scores are scaled by head_dim ** -0.5.

    `input_size` is the width that q, k and v read. `window` (0: none): keys less than that many positions back, or,
    `window_at_anchor`, for all rows of a block the context from `window` positions before its first row on.
    `causal` is within a block: a block drafter's rows may see later rows of their block. `gated`: q_proj gives
    [heads, 2 * head_dim], query and gate of each head, and the sigmoid of the gate multiplies its output.
    """

    heads: int
    kv_heads: int
    head_dim: int
    input_size: int
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    window: int = 0
    window_at_anchor: bool = False
    causal: bool = True
    gated: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: q_a/q_b, kv_a (with the shared rotary key), kv_b, o projections.

    `q_rank` 0: a plain q_proj. q_a (or q_proj) and kv_a read `input_size` channels. Scores are scaled by `scale`; only
    the last `rope_dim` channels of a head turn.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    input_size: int
    scale: float
    bias: bool = False
    norm_eps: float = 1e-6
    """Of the two norms inside, which have an epsilon of their own."""


@dataclass(frozen=True)
class Mlp:
    """down(activation(gate(x)) * up(x)), without biases."""

    intermediate_size: int
    activation: str


@dataclass(frozen=True)
class Experts:
    """A mixture of experts, each an Mlp. `scoring`: softmax or sigmoid of the router's logits.

    `correction`: a bias by which experts are chosen, not weighted; `groups`, of two experts or more, of which those
    `groups_per_token` may be chosen whose two best experts have the greatest sum.
    `shared_size`: width of the expert that all tokens take (0: none), `shared_gate`: scaled by a sigmoid of its own.
    """

    count: int
    per_token: int
    intermediate_size: int
    activation: str
    scoring: str
    normalise: bool
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1
    correction: bool = False
    shared_size: int = 0
    shared_gate: bool = False


@dataclass(frozen=True)
class Layer:
    """One decoder layer: x + attention(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)).

    `input_norm` False: attention reads x itself (EAGLE-1). `hidden_norm`: the layer reads two rows, an embedding and a
    feature f, as [input_layernorm(e); hidden_norm(f)], and its residual is f, or with `norm_before_residual`
    hidden_norm(f) (EAGLE-3's first layer).
    """

    attention: Attention | LatentAttention
    mlp: Mlp | Experts
    input_norm: bool = True
    hidden_norm: bool = False
    norm_before_residual: bool = False


@dataclass(frozen=True)
class Fuse:
    """How target features become the drafter's: fc over what is concatenated.

    Order: each tap through `fc_norm.{tap}` (`per_tap_norm`), all taps together through `input_norm` (`pre_norm`),
    then fc, then `hidden_norm` (`post_norm`). With `tokens`, fc reads [embedding; feature], first normed by
    `token_norm` and `feature_norm` if `token_norms` (EAGLE-1, MTP). `fc` False: features are used as they are.
    """

    fc: bool = True
    bias: bool = False
    per_tap_norm: bool = False
    pre_norm: bool = False
    post_norm: bool = False
    tokens: bool = False
    token_norms: bool = False


@dataclass(frozen=True)
class Block:
    """A block of rows that are drafted in one pass: the last token, then masks, at successive positions.

    `anchor_first`: row k gives the token after row k's own position, `size` drafts (DeepSpec); otherwise row k fills in
    the token at its own position and row 0 gives nothing, `size` - 1 drafts (z-lab). `mask_token_id` is embedded for
    unknown tokens. A P-EAGLE, whose rows are the last pair and then masks, masks features too (`mask_hidden`).
    """

    size: int
    anchor_first: bool
    mask_token_id: int


@dataclass(frozen=True)
class Markov:
    """A bias on draft logits from the token before: `kind` vanilla, gated or rnn, through a width of `rank`."""

    kind: str
    rank: int


@dataclass(frozen=True)
class Confidence:
    """A head that foretells whether a draft is kept; `markov`: it also reads the embedding of the token before."""

    markov: bool


@dataclass(frozen=True)
class Medusa:
    """`heads` heads on the target's last hidden state, each `blocks` residual blocks x + silu(linear(x)).

    Head i gives the token i + 2 places on. `shared_lm_head`: all use the target's head.
    """

    heads: int
    blocks: int
    shared_lm_head: bool = False


@dataclass(frozen=True)
class DrafterSpec:
    """The contract. Sizes in elements; a drafter of `kind` uses the fields that its kind needs.

    `source` names the format read. Feature drafters pair the feature of position i with the token at i + 1; that row's
    rotary position is i + `position_shift`. `draft_vocab_size` < `vocab_size` means that `d2t` maps draft ids.
    `speculative_tokens`: K that the source was trained or configured for, 0 if it says nothing.
    `conventions` tells, for reports, what was read where.
    """

    kind: Kind
    source: str
    hidden_size: int
    target_hidden_size: int
    target_layers: int
    vocab_size: int
    draft_vocab_size: int
    taps: tuple[int, ...]
    fuse: Fuse = field(default_factory=Fuse)
    layers: tuple[Layer, ...] = ()
    rope: Rope | None = None
    position_shift: int = 0
    norm: bool = True
    norm_eps: float = 1e-6
    recycle: Recycle = Recycle.NONE
    embedding: Ownership = Ownership.TARGET
    head: Ownership = Ownership.TARGET
    block: Block | None = None
    markov: Markov | None = None
    confidence: Confidence | None = None
    medusa: Medusa | None = None
    speculative_tokens: int = 0
    conventions: Mapping[str, str] = field(default_factory=dict)

    @property
    def mapped(self) -> bool:
        """Whether draft ids are not target ids, and `d2t` is there."""
        return self.draft_vocab_size != self.vocab_size

    @property
    def most_drafts(self) -> int:
        """Drafts of one round at most; a drafter that feeds back what it gives has no limit but its training."""
        if self.medusa is not None:
            return self.medusa.heads
        if self.block is not None:
            return self.block.size - (not self.block.anchor_first)
        return sys.maxsize


@dataclass(frozen=True)
class DrafterCheckpoint:
    """A contract and its tensors, named as above. `provenance`: where they come from, for the manifest."""

    spec: DrafterSpec
    weights: WeightStore
    provenance: Mapping[str, str] = field(default_factory=dict)
