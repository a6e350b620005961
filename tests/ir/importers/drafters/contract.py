"""A drafter computed from its normalised contract alone: what `DrafterSpec` and its weights must be enough for.

Comparing it with `reference.py`, which reads the raw files, shows that the readers lost and confused nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from specc.ir.importers.drafters import (
    Attention,
    DrafterCheckpoint,
    DrafterSpec,
    Experts,
    Kind,
    LatentAttention,
    Layer,
    Mlp,
    Recycle,
)
from tests.ir.importers.drafters.reference import ACTIVATIONS, hidden_states, rms


class Computed:
    """The parts of a drafter, by name."""

    def __init__(self, checkpoint: DrafterCheckpoint) -> None:
        self.spec: DrafterSpec = checkpoint.spec
        self.weights = {n: w.load() for n, w in checkpoint.weights.items()}

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(
            x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        )

    def rms(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.weights[name], self.spec.norm_eps)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """[heads, rows, dim]; the first channels turn."""
        rope = self.spec.rope
        assert rope is not None
        angles = positions[:, None].float() * self.weights["rope.inv_freq"]
        cos, sin = angles.cos() * rope.attention_scale, angles.sin() * rope.attention_scale
        part, rest = x[..., : rope.dim], x[..., rope.dim :]
        first, second = (
            (part[..., 0::2], part[..., 1::2]) if rope.interleaved else part.chunk(2, -1)
        )
        turned = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat([*turned, rest], -1)

    def attention(
        self, layer: Attention | LatentAttention, name: str, read: Tensor, context: Tensor | None,
        positions: Tensor, allowed: Tensor,
    ) -> Tensor:  # fmt: skip
        """Rows `read`, whose keys are also those of `context` rows before them; positions of all keys."""
        if isinstance(layer, LatentAttention):
            return self.latent(layer, name, read, positions, allowed)
        both = read if context is None else torch.cat([context, read])

        def heads(x: Tensor, which: str) -> Tensor:
            split = (
                self.linear(x, f"{name}.{which}_proj")
                .unflatten(-1, (-1, layer.head_dim))
                .transpose(0, 1)
            )
            return (
                self.rms(split, f"{name}.{which}_norm.weight")
                if layer.qk_norm and which != "v"
                else split
            )

        gate = None
        if layer.gated:
            query = self.linear(read, f"{name}.q_proj").unflatten(
                -1, (layer.heads, 2, layer.head_dim)
            )
            q, gate = query[:, :, 0].transpose(0, 1), query[:, :, 1].flatten(1)
            q = self.rms(q, f"{name}.q_norm.weight") if layer.qk_norm else q
        else:
            q = heads(read, "q")
        q = self.turn(q, positions[len(both) - len(read) :])
        k, v = self.turn(heads(both, "k"), positions), heads(both, "v")
        k, v = (t.repeat_interleave(layer.heads // layer.kv_heads, 0) for t in (k, v))
        scores = (q @ k.transpose(1, 2) * layer.head_dim**-0.5).masked_fill(~allowed, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        return self.linear(mixed if gate is None else mixed * gate.sigmoid(), f"{name}.o_proj")

    def latent(
        self, layer: LatentAttention, name: str, x: Tensor, positions: Tensor, allowed: Tensor
    ) -> Tensor:
        if layer.q_rank:
            low = self.linear(x, f"{name}.q_a_proj")
            q = self.linear(
                rms(low, self.weights[f"{name}.q_a_layernorm.weight"], layer.norm_eps),
                f"{name}.q_b_proj",
            )
        else:
            q = self.linear(x, f"{name}.q_proj")
        q = q.unflatten(-1, (layer.heads, -1)).transpose(0, 1)
        low, shared = self.linear(x, f"{name}.kv_a_proj_with_mqa").split(
            [layer.kv_rank, layer.rope_dim], -1
        )
        low = rms(low, self.weights[f"{name}.kv_a_layernorm.weight"], layer.norm_eps)
        wide = (
            self.linear(low, f"{name}.kv_b_proj").unflatten(-1, (layer.heads, -1)).transpose(0, 1)
        )
        k_plain, v = wide.split([layer.nope_dim, layer.value_dim], -1)
        plain, turning = q.split([layer.nope_dim, layer.rope_dim], -1)
        q = torch.cat([plain, self.turn(turning, positions)], -1)
        turned = self.turn(shared[None], positions).expand(layer.heads, -1, -1)
        k = torch.cat([k_plain, turned], -1)
        scores = (q @ k.transpose(1, 2) * layer.scale).masked_fill(~allowed, -torch.inf)
        return self.linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), f"{name}.o_proj")

    def mlp(self, layer: Mlp | Experts, name: str, x: Tensor) -> Tensor:
        act = ACTIVATIONS[layer.activation]

        def one(which: str, rows: Tensor) -> Tensor:
            wide = act(self.linear(rows, f"{which}.gate_proj")) * self.linear(
                rows, f"{which}.up_proj"
            )
            return self.linear(wide, f"{which}.down_proj")

        def expert(which: int, row: Tensor) -> Tensor:
            both = self.weights[f"{name}.experts.gate_up_proj"][which]
            gate, up = (both @ row).chunk(2)
            return self.weights[f"{name}.experts.down_proj"][which] @ (act(gate) * up)

        if isinstance(layer, Mlp):
            return one(name, x)
        logits = x @ self.weights[f"{name}.gate.weight"].T
        scores = logits.sigmoid() if layer.scoring == "sigmoid" else logits.softmax(-1)
        wanted = scores + self.weights[f"{name}.gate.correction"] if layer.correction else scores
        if layer.groups > 1:
            grouped = wanted.unflatten(-1, (layer.groups, -1))
            best = grouped.topk(2, -1).values.sum(-1).topk(layer.groups_per_token, -1).indices
            inside = torch.zeros(len(x), layer.groups, dtype=torch.bool).scatter(1, best, True)
            wanted = grouped.masked_fill(~inside[..., None], -torch.inf).flatten(1)
        chosen = wanted.topk(layer.per_token, -1).indices
        shares = scores.gather(1, chosen)
        if layer.normalise:
            shares = shares / shares.sum(-1, keepdim=True)
        out = torch.stack([
            sum(s * layer.scale * expert(int(e), row) for e, s in zip(ids, share, strict=True))
            for row, ids, share in zip(x, chosen, shares, strict=True)
        ])  # fmt: skip
        if layer.shared_size:
            extra = one(f"{name}.shared_expert", x)
            if layer.shared_gate:
                extra = extra * (x @ self.weights[f"{name}.shared_gate.weight"].T).sigmoid()
            out = out + extra
        return out

    def layer(
        self, index: int, layer: Layer, x: Tensor, feature: Tensor | None, context: Tensor | None,
        positions: Tensor, allowed: Tensor,
    ) -> Tensor:  # fmt: skip
        """`x` is the embedding where the layer also reads a feature."""
        name = f"layers.{index}"
        read = self.rms(x, f"{name}.input_layernorm.weight") if layer.input_norm else x
        residual = x
        if layer.hidden_norm:
            assert feature is not None
            normed = self.rms(feature, f"{name}.hidden_norm.weight")
            read, residual = (
                torch.cat([read, normed], -1),
                normed if layer.norm_before_residual else feature,
            )
        x = residual + self.attention(
            layer.attention, f"{name}.self_attn", read, context, positions, allowed
        )
        return x + self.mlp(
            layer.mlp, f"{name}.mlp", self.rms(x, f"{name}.post_attention_layernorm.weight")
        )

    def fuse(self, joined: Tensor, tokens: Tensor | None) -> Tensor:
        """Taps [rows, A * Ht] (and embeddings) to features."""
        fuse = self.spec.fuse
        if fuse.per_tap_norm:
            parts = joined.chunk(len(self.spec.taps), -1)
            joined = torch.cat(
                [self.rms(p, f"fc_norm.{i}.weight") for i, p in enumerate(parts)], -1
            )
        if fuse.pre_norm:
            joined = self.rms(joined, "input_norm.weight")
        if fuse.tokens:
            assert tokens is not None
            if fuse.token_norms:
                tokens, joined = (
                    self.rms(tokens, "token_norm.weight"),
                    self.rms(joined, "feature_norm.weight"),
                )
            joined = torch.cat([tokens, joined], -1)
        features = self.linear(joined, "fc") if fuse.fc else joined
        return self.rms(features, "hidden_norm.weight") if fuse.post_norm else features

    def ids(self, drafts: Tensor) -> int:
        return int(self.weights["d2t"][drafts] if self.spec.mapped else drafts)


def draft(
    checkpoint: DrafterCheckpoint, model: PreTrainedModel, committed: list[int], k: int
) -> list[int]:
    """The next drafts, from scratch, as `reference.draft`."""
    computed = Computed(checkpoint)
    states = hidden_states(model, committed[:-1])
    joined = torch.cat([states[j] for j in checkpoint.spec.taps], -1)
    with torch.no_grad():
        if checkpoint.spec.kind is Kind.MEDUSA:
            return _medusa(computed, joined[-1])[:k]
        if checkpoint.spec.kind in (Kind.DFLASH, Kind.DSPARK):
            return _block(computed, joined, committed[-1])[0][:k]
        if checkpoint.spec.kind is Kind.PEAGLE:
            return _parallel(computed, joined, committed, k)
        return _recycled(computed, joined, committed, k)


def _medusa(c: Computed, last: Tensor) -> list[int]:
    medusa, drafts = c.spec.medusa, []
    assert medusa is not None
    for head in range(medusa.heads):
        x = last
        for block in range(medusa.blocks):
            x = x + functional.silu(c.linear(x, f"heads.{head}.blocks.{block}"))
        drafts.append(int(c.linear(x, f"heads.{head}.lm_head").argmax()))
    return drafts


def _causal(layer: Attention | LatentAttention, rows: int) -> Tensor:
    at = torch.arange(rows)
    seen = at[None] <= at[:, None]
    window = 0 if isinstance(layer, LatentAttention) else layer.window
    return seen & (at[None] > at[:, None] - window) if window else seen


def _recycled(c: Computed, joined: Tensor, committed: list[int], k: int) -> list[int]:
    spec, table = c.spec, c.weights["embed_tokens.weight"]
    fed, tokens, drafts = joined, list(committed[1:]), []
    features = None if spec.fuse.tokens else c.fuse(fed, None)
    for _ in range(k):
        rows, embedded = len(tokens), table[tokens]
        positions = torch.arange(rows) + spec.position_shift
        x = c.fuse(fed, embedded) if features is None else embedded
        for i, layer in enumerate(spec.layers):
            x = c.layer(i, layer, x, features, None, positions, _causal(layer.attention, rows))
        last = x[-1:]
        normed = c.rms(last, "norm.weight") if spec.norm else last
        drafts.append(c.ids(c.linear(normed, "lm_head").argmax()))
        back = normed if spec.recycle is Recycle.POST_NORM else last
        fed = torch.cat([fed, back]) if features is None else fed
        features = None if features is None else torch.cat([features, back])
        tokens.append(drafts[-1])
    return drafts


def _parallel(c: Computed, joined: Tensor, committed: list[int], k: int) -> list[int]:
    block = c.spec.block
    assert block is not None
    features = c.fuse(torch.cat([joined, c.weights["mask_hidden"].expand(k - 1, -1)]), None)
    x = c.weights["embed_tokens.weight"][committed[1:] + [block.mask_token_id] * (k - 1)]
    positions = torch.arange(len(x)) + c.spec.position_shift
    for i, layer in enumerate(c.spec.layers):
        x = c.layer(i, layer, x, features, None, positions, _causal(layer.attention, len(x)))
    logits = c.linear(c.rms(x[-k:], "norm.weight"), "lm_head")
    return [c.ids(row.argmax()) for row in logits]


def confidences(
    checkpoint: DrafterCheckpoint, model: PreTrainedModel, committed: list[int]
) -> list[float]:
    """How likely each draft of a block is kept, by the head for that; empty without one."""
    states = hidden_states(model, committed[:-1])
    joined = torch.cat([states[j] for j in checkpoint.spec.taps], -1)
    with torch.no_grad():
        return _block(Computed(checkpoint), joined, committed[-1])[1]


def _block(c: Computed, joined: Tensor, anchor: int) -> tuple[list[int], list[float]]:
    block, context = c.spec.block, c.fuse(joined, None)
    assert block is not None
    start = len(context)
    x = c.weights["embed_tokens.weight"][[anchor] + [block.mask_token_id] * (block.size - 1)]
    positions = torch.arange(start + block.size)
    for i, layer in enumerate(c.spec.layers):
        attention = layer.attention
        assert isinstance(attention, Attention)
        rows, at = positions[start:, None], positions[None]
        seen = (
            at <= rows
            if attention.causal
            else torch.ones(block.size, len(positions), dtype=torch.bool)
        )
        if attention.window:
            first = (
                start - attention.window
                if attention.window_at_anchor
                else rows - attention.window + 1
            )
            seen = seen & ((at >= first) | (at >= start))
        x = c.layer(i, layer, x, None, context, positions, seen)
    hidden = c.rms(x, "norm.weight")[0 if block.anchor_first else 1 :]
    drafts, kept, before, markov = [], [], anchor, c.spec.markov
    state = torch.zeros(markov.rank if markov else 0)
    for h, row in zip(hidden, c.linear(hidden, "lm_head"), strict=True):
        if markov:
            e = inner = c.weights["markov_head.markov_w1.weight"][before]
            if markov.kind == "gated":
                inner = c.linear(torch.cat([h, e]), "markov_head.gate_proj").sigmoid() * e
            if markov.kind == "rnn":
                g, new, o = c.linear(torch.cat([state, e, h]), "markov_head.joint_proj").chunk(3)
                state = torch.lerp(new.tanh(), state, g.sigmoid())
                inner = o.tanh()
            row = row + c.linear(inner, "markov_head.markov_w2")
        if c.spec.confidence:
            reads = h
            if c.spec.confidence.markov:
                reads = torch.cat([h, c.weights["markov_head.markov_w1.weight"][before]])
            kept.append(float(c.linear(reads, "confidence_head.proj").sigmoid()))
        before = c.ids(row.argmax())
        drafts.append(before)
    return drafts, kept
