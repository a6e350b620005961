"""Every family: drafts from the normalised contract equal those of an eager implementation on the raw files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specc.ir.importers.drafters import (
    Block,
    DrafterCheckpoint,
    DrafterSpec,
    Fuse,
    Markov,
    Recycle,
    Target,
    kind_in,
    load_drafter,
    load_native,
)
from tests.ir.importers.drafters import (
    contract,
    reference,
    reference_block,
    synthetic,
    synthetic_mtp,
)

Make = Callable[[Path, PreTrainedModel], Path]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
WINDOW = {
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "use_sliding_window": True,
}  # fmt: skip
TAPS = [0, 3, 6]


def made(function: Any, *positional: Any, **keys: Any) -> Make:
    return lambda folder, model: function(folder, model, *positional, **keys)


DRAFTERS: dict[str, Make] = {
    "eagle1": made(synthetic.eagle1),
    "eagle1-bias": made(synthetic.eagle1, bias=True),
    "eagle1-own-theta": made(synthetic.eagle1, rope_theta=5e5),
    "eagle3-safeailab": made(synthetic.eagle3),
    "eagle3-specforge": made(synthetic.specforge_eagle3, taps=[1, 3, 6]),
    "eagle3-specforge-llama3-rope": made(synthetic.specforge_eagle3, rope_scaling=LLAMA3),
    "eagle3.1-specforge": made(synthetic.specforge_eagle3, fc_norm=True, norm_output=True),
    "eagle3-modelopt": made(synthetic.specforge_eagle3, taps=[1, 3, 4], modelopt=True),
    "eagle3-deepseek": made(synthetic.deepseek_eagle3),
    "eagle3-deepseek-two-layers": made(
        synthetic.deepseek_eagle3, q_rank=0, layers=2, rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
    ),
    "eagle3-deepspec": made(synthetic.deepspec_eagle3, [0, 2, 3, 5, 6]),
    "eagle3-speculators": made(synthetic.speculators_eagle3, taps=[1, 4, 7]),
    "eagle3-speculators-norms": made(
        synthetic.speculators_eagle3, norm_before_fc=True, norm_before_residual=True, norm_output=True
    ),
    "peagle-specforge": made(synthetic.specforge_peagle),
    "peagle-speculators": made(synthetic.speculators_peagle, layers=3),
    "medusa": made(synthetic.medusa),
    "medusa-two-blocks": made(synthetic.medusa, blocks=2, heads=4),
    "medusa-shared": made(synthetic.medusa, shared=True),
    "dflash-zlab": made(synthetic.zlab_dflash, taps=TAPS),
    "dflash-zlab-default-taps": made(synthetic.zlab_dflash, layers=3),
    "dflash-zlab-window": made(synthetic.zlab_dflash, taps=TAPS, **WINDOW),
    "dflash-zlab-window-not-causal": made(synthetic.zlab_dflash, taps=TAPS, is_causal=False, **WINDOW),
    "dflash-zlab-yarn": made(synthetic.zlab_dflash, taps=TAPS, rope_parameters=YARN),
    "dflash-zlab-anchor-first": made(synthetic.zlab_dflash, taps=TAPS, query_zero_predicts_next=True),
    "dflash-deepspec": made(synthetic.deepspec_dspark, TAPS, markov=""),
    "dflash-speculators": made(synthetic.speculators_block, TAPS),
    "dflash-speculators-window": made(synthetic.speculators_block, TAPS, window=4),
    "dspark-specforge": made(synthetic.specforge_dspark, TAPS),
    "dspark-specforge-wrapped": made(synthetic.specforge_dspark, TAPS, prefix="logit_head."),
    "dspark-deepspec-vanilla": made(synthetic.deepspec_dspark, TAPS),
    "dspark-deepspec-gated": made(synthetic.deepspec_dspark, TAPS, markov="gated"),
    "dspark-deepspec-rnn": made(synthetic.deepspec_dspark, TAPS, markov="rnn"),
    "dspark-speculators": made(synthetic.speculators_block, TAPS, "dspark", sample_from_anchor=True),
    "dspark-speculators-old": made(synthetic.speculators_block, TAPS, "dspark", tokens=4, markov="rnn"),
    "mtp-speculators-qwen3": made(synthetic_mtp.speculators),
    "mtp-speculators-qwen3-next": made(synthetic_mtp.speculators, "qwen3_next"),
}  # fmt: skip

NATIVE: dict[str, Make] = {
    "deepseek-v3": made(synthetic_mtp.deepseek),
    "deepseek-v3-yarn": made(synthetic_mtp.deepseek, yarn=True),
    "glm4": made(synthetic_mtp.glm),
    "qwen3-next": made(synthetic_mtp.qwen),
    "qwen3.5": made(synthetic_mtp.qwen, "qwen3_5_text"),
    "mimo": made(synthetic_mtp.mimo),
}


Change = Callable[[DrafterSpec], DrafterSpec]


def first_layer(**values: Any) -> Change:
    return lambda s: replace(s, layers=(replace(s.layers[0], **values), *s.layers[1:]))


def first_attention(**values: Any) -> Change:
    def change(spec: DrafterSpec) -> DrafterSpec:
        attention = replace(spec.layers[0].attention, **values)
        return first_layer(attention=attention)(spec)

    return change


def in_block(**values: Any) -> Change:
    return lambda s: replace(s, block=replace(s.block or Block(1, True, 0), **values))


MISREAD: dict[str, tuple[str, Change]] = {
    "taps one too low": ("eagle3-safeailab", lambda s: replace(s, taps=tuple(t - 1 for t in s.taps))),
    "taps in another order": ("eagle3-speculators", lambda s: replace(s, taps=s.taps[::-1])),
    "recycled before the norm": ("eagle3.1-specforge", lambda s: replace(s, recycle=Recycle.PRE_NORM)),
    "recycled after the norm": ("eagle3-safeailab", lambda s: replace(s, recycle=Recycle.POST_NORM)),
    "residual not normed": ("eagle3-speculators-norms", first_layer(norm_before_residual=False)),
    "halves turned for pairs": ("eagle3-deepseek", lambda s: replace(s, rope=replace(s.rope, interleaved=False))),
    "no norm before fc": ("eagle3-speculators-norms", lambda s: replace(s, fuse=Fuse())),
    "feature before the final norm": ("eagle1", lambda s: replace(s, taps=(7,))),
    "fill-in for anchor-first": ("dflash-deepspec", in_block(anchor_first=False)),
    "anchor-first for fill-in": ("dflash-zlab", in_block(anchor_first=True)),
    "another mask token": ("dflash-zlab", in_block(mask_token_id=3)),
    "causal within the block": ("dflash-zlab", first_attention(causal=True)),
    "no window": ("dflash-zlab-window", first_attention(window=0)),
    "no Markov head": ("dspark-deepspec-vanilla", lambda s: replace(s, markov=None)),
    "vanilla for gated": ("dspark-deepspec-gated", lambda s: replace(s, markov=Markov("vanilla", 6))),
    "norms not applied to token and feature": (
        "mtp-speculators-qwen3", lambda s: replace(s, fuse=replace(s.fuse, token_norms=False)),
    ),
}  # fmt: skip
"""What a reader could get wrong without an error, and a drafter that shows it."""


def same_drafts(checkpoint: DrafterCheckpoint, folder: Path, model: PreTrainedModel) -> None:
    """Three rounds: a prompt, then texts that are longer by what a round could have kept."""
    random = torch.Generator().manual_seed(3)
    text = torch.randint(3, 96, (20,), generator=random).tolist()
    seen = set()
    for length in (12, 14, 19):
        want = reference.draft(folder, model, text[:length], 4)
        assert contract.draft(checkpoint, model, text[:length], 4) == want
        assert len(want) >= 3
        seen.add(tuple(want))
    assert len(seen) == 3, "the drafts follow the text"


@pytest.mark.parametrize("name", DRAFTERS)
def test_same_drafts(name: str, tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    folder = DRAFTERS[name](tmp_path / "drafter", model)
    checkpoint = load_drafter(folder, target)
    assert kind_in(folder) is checkpoint.spec.kind
    same_drafts(checkpoint, folder, model)


@pytest.mark.parametrize("name", NATIVE)
def test_same_drafts_of_native_layers(
    name: str, tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    folder = NATIVE[name](tmp_path / "model", model)
    same_drafts(load_native(folder, target), folder, model)


@pytest.mark.parametrize("name", [n for n in DRAFTERS if n.startswith(("dspark", "dflash-zlab"))])
def test_same_confidence(name: str, tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    folder = DRAFTERS[name](tmp_path / "drafter", model)
    text = torch.randint(3, 96, (15,), generator=torch.Generator().manual_seed(4)).tolist()
    with torch.no_grad():
        want = reference_block.draft(reference.Raw.read(folder), model, text, 0)[1]
    assert contract.confidences(load_drafter(folder, target), model, text) == pytest.approx(
        want, rel=1e-5
    )
    assert bool(want) == name.startswith("dspark")


@pytest.mark.parametrize("what", MISREAD)
def test_each_convention_matters(
    what: str, tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    """B68 and its like: with one convention read wrongly the drafts are others, so the tests above would tell."""
    name, change = MISREAD[what]
    folder = DRAFTERS[name](tmp_path / "drafter", model)
    checkpoint = load_drafter(folder, target)
    wrong = replace(checkpoint, spec=change(checkpoint.spec))
    text = torch.randint(3, 96, (20,), generator=torch.Generator().manual_seed(3)).tolist()
    lengths = (12, 14, 19)
    right = [reference.draft(folder, model, text[:n], 4) for n in lengths]
    assert [contract.draft(wrong, model, text[:n], 4) for n in lengths] != right
