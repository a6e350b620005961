"""DFlash and DSpark: blocks drafted in one pass over context rows made from taps. What formats share."""

from __future__ import annotations

from dataclasses import dataclass

from specc.errors import ModelError
from specc.ir.importers.drafters.files import Config
from specc.ir.importers.drafters.layers import (
    Parts,
    attention_sizes,
    check_target,
    read_embedding,
    read_head,
    read_layer,
    read_rows_of_head,
    window_of,
)
from specc.ir.importers.drafters.positions import rope
from specc.ir.importers.drafters.spec import (
    Block,
    Confidence,
    DrafterCheckpoint,
    DrafterSpec,
    Fuse,
    Kind,
    Markov,
)
from specc.ir.importers.drafters.vocabulary import draft_ids
from specc.ir.weights import Weight, WeightStore


@dataclass(frozen=True)
class BlockConventions:
    """What a format says in keys of its own. Taps are hidden-state indices; `heads` holds the keys of the heads."""

    source: str
    taps: tuple[int, ...]
    size: int
    mask_token_id: int
    anchor_first: bool
    heads: Config
    target_layers: int | None = None
    causal: bool | None = None
    """Within a block, for all layers; None: only layers with a window are."""
    window_at_anchor: bool = False
    speculative_tokens: int = 0
    head_of_target: bool = False
    """There is no head in the checkpoint: rows of the target's, those of the draft vocabulary, are meant."""


def anchor_flag(*sections: Config) -> bool | None:
    """`sample_from_anchor` or `query_zero_predicts_next`, wherever it stands; None if nowhere.

    Raises ModelError (SPECC-E0278) if they contradict each other.
    """
    found = {
        section.flag(key)
        for section in sections
        for key in ("sample_from_anchor", "query_zero_predicts_next")
        if section.get(key) is not None
    }
    if len(found) > 1:
        raise sections[0].bad("sample_from_anchor", "the same as query_zero_predicts_next")
    return found.pop() if found else None


def read_block(parts: Parts, said: BlockConventions) -> DrafterCheckpoint:
    """A drafter of blocks; a DSpark if it has a Markov or confidence head.

    Raises ModelError (SPECC-E0273 to E0279).
    """
    config, target = parts.config, parts.target
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    count = config.integer("num_hidden_layers")
    config.integer("target_hidden_size", hidden)
    if config.get("target_hidden_size", hidden) != hidden:
        raise config.bad("target_hidden_size", f"{hidden}, the drafter's own")
    check_target(parts, hidden=hidden, vocab=vocab, layers=said.target_layers, taps=said.taps)
    if target.scales_embedding:
        # z-lab trains through the target's own module, which scales; others through its table. No key tells.
        raise config.bad(
            "input_embedding_scale", f"a key that tells whether {target.architecture}'s scale was applied in training",
            "use --method eagle3, whose drafters read the table as it is, or suffix",
        )  # fmt: skip
    parts.take("fc.weight", [hidden, len(said.taps) * hidden])
    parts.take("hidden_norm.weight", [hidden])
    parts.take("norm.weight", [hidden])
    layers = []
    for i in range(count):
        window = window_of(config, i)
        causal = bool(window) if said.causal is None else said.causal
        layers.append(
            read_layer(parts, f"layers.{i}", i, hidden, window=window, causal=causal,
                       window_at_anchor=said.window_at_anchor and window > 0)
        )  # fmt: skip
    described, frequencies = rope(config, attention_sizes(config, hidden)[2])
    parts.weights["rope.inv_freq"] = frequencies
    drafts = config.integer("draft_vocab_size", vocab)
    ids, how = draft_ids(parts.tensors, drafts, vocab)
    if ids is not None:
        parts.weights["d2t"] = Weight.of(ids)
    size = min(vocab, target.rows)
    embedding = read_embedding(parts, "embed_tokens.weight", hidden, size)
    if said.head_of_target:
        head = read_rows_of_head(parts, "lm_head.weight", hidden, size, ids)
    else:
        head = read_head(
            parts,
            "lm_head.weight",
            hidden,
            size if ids is None else drafts,
            required=ids is not None,
        )
    rows = int(parts.weights["lm_head.weight"].type.shape[0])
    markov = _markov(parts, said.heads, hidden, size, rows)
    confidence = _confidence(parts, said.heads, hidden, markov)
    _check_mask(parts, said.mask_token_id)
    parts.conventions |= {
        "taps": f"hidden states {', '.join(map(str, said.taps))}", "vocabulary": how,
        "block": f"{said.size} rows, " + ("row k gives token k + 1" if said.anchor_first else "row k fills in token k"),
        "embedding": str(embedding), "head": str(head),
    }  # fmt: skip
    spec = DrafterSpec(
        Kind.DSPARK if markov or confidence else Kind.DFLASH, said.source, hidden, hidden, target.num_layers,
        vocab if ids is not None else rows, rows, said.taps, Fuse(post_norm=True), tuple(layers), described,
        norm_eps=config.number("rms_norm_eps", 1e-6), embedding=embedding, head=head,
        block=Block(said.size, said.anchor_first, said.mask_token_id), markov=markov, confidence=confidence,
        speculative_tokens=said.speculative_tokens or said.size - (not said.anchor_first),
        conventions=parts.conventions,
    )  # fmt: skip
    return DrafterCheckpoint(spec, WeightStore(parts.weights))


def _markov(parts: Parts, heads: Config, hidden: int, vocab: int, drafts: int) -> Markov | None:
    rank = heads.integer("markov_rank", 0, 0)
    kind = str(heads.get("markov_head_type", "vanilla"))
    if rank == 0:
        return None
    if kind not in ("vanilla", "gated", "rnn"):
        raise heads.bad("markov_head_type", "vanilla, gated or rnn")
    # Early SpecForge checkpoints keep their heads in a wrapper.
    inner = "logit_head.markov_head.markov_w1.weight" in parts.tensors
    source = "logit_head.markov_head" if inner else "markov_head"
    parts.take_rows(f"{source}.markov_w1.weight", [vocab, rank], "markov_head.markov_w1.weight")
    parts.take_rows(f"{source}.markov_w2.weight", [drafts, rank], "markov_head.markov_w2.weight")
    if kind == "gated":
        _affine(parts, f"{source}.gate_proj", "markov_head.gate_proj", rank, hidden + rank)
    if kind == "rnn":
        _affine(
            parts, f"{source}.joint_proj", "markov_head.joint_proj", 3 * rank, 2 * rank + hidden
        )
    return Markov(kind, rank)


def _confidence(
    parts: Parts, heads: Config, hidden: int, markov: Markov | None
) -> Confidence | None:
    trained = heads.number("confidence_head_alpha", 0.0) > 0
    enabled = heads.flag("enable_confidence_head", trained)
    with_markov = heads.flag("confidence_head_with_markov")
    if not enabled:
        return None
    if with_markov and markov is None:
        raise heads.bad("confidence_head_with_markov", "a Markov head (markov_rank above 0)")
    inner = "logit_head.confidence_head.proj.weight" in parts.tensors
    source = "logit_head.confidence_head" if inner else "confidence_head"
    width = hidden + (markov.rank if markov is not None and with_markov else 0)
    _affine(parts, f"{source}.proj", "confidence_head.proj", 1, width)
    return Confidence(with_markov)


def _affine(parts: Parts, source: str, name: str, rows: int, width: int) -> None:
    parts.take(f"{source}.weight", [rows, width], f"{name}.weight")
    parts.take(f"{source}.bias", [rows], f"{name}.bias")


def _check_mask(parts: Parts, mask: int) -> None:
    rows = int(parts.weights["embed_tokens.weight"].type.shape[0])
    if mask >= rows:
        raise ModelError(
            "SPECC-E0273", "the drafter's mask token is no row of the embedding", where=parts.tensors.where,
            expected=f"an id below {rows}", found=str(mask),
            cure="use the target that it was trained for; its embedding may have been resized",
        )  # fmt: skip
