"""EAGLE-1, EAGLE-3, P-EAGLE and Medusa checkpoints: every convention of every format, in one contract."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from specc.ir.importers.drafters import (
    DrafterCheckpoint,
    Kind,
    Ownership,
    Recycle,
    Target,
    load_drafter,
)
from specc.ir.importers.huggingface import import_model
from tests.ir.importers.drafters import synthetic


def value(checkpoint: DrafterCheckpoint, name: str) -> torch.Tensor:
    return checkpoint.weights[name].load()


def test_target_facts(model: PreTrainedModel, target: Target) -> None:
    assert (target.hidden_size, target.num_layers, target.vocab_size, target.rows) == (
        32,
        8,
        96,
        96,
    )
    assert torch.equal(target.embedding.load(), model.get_input_embeddings().weight)
    assert torch.equal(target.head.load(), model.get_output_embeddings().weight)


def test_a_tied_target_behind_scales_and_caps() -> None:
    """Gemma-2 scales its embedding and caps its logits; head and embedding are one tensor."""
    model = synthetic.tiny("gemma2", num_hidden_layers=1, head_dim=8, query_pre_attn_scalar=16)
    target = Target.of(import_model(model, "gemma2"))
    assert target.embedding is target.head
    assert torch.equal(target.head.load(), model.get_output_embeddings().weight)
    assert (target.scales_embedding, target.head_bias) == (True, False)


@pytest.mark.parametrize(
    ("kind", "values", "scales", "bias"),
    [
        ("llama", {}, False, False), ("qwen3", {"head_dim": 16}, False, False), ("gpt2", {"n_embd": 32}, False, False),
        ("granite", {"embedding_multiplier": 2.0}, True, False), ("phi", {}, False, True),
    ],
)  # fmt: skip
def test_what_a_target_does_to_its_embedding_and_logits(
    kind: str, values: dict[str, float], scales: bool, bias: bool
) -> None:
    if kind == "gpt2":
        values |= {"n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 96}
    target = Target.of(import_model(synthetic.tiny(kind, **values), kind))
    assert (target.scales_embedding, target.head_bias) == (scales, bias)


@pytest.mark.parametrize("bias", [False, True])
def test_eagle1(tmp_path: Path, model: PreTrainedModel, target: Target, bias: bool) -> None:
    folder = synthetic.eagle1(tmp_path / "e", model, bias=bias)
    checkpoint = load_drafter(folder, target, "eagle")
    spec, stored = checkpoint.spec, load_file(folder / "model.safetensors")
    assert (spec.kind, spec.source) == (Kind.EAGLE, "SafeAILab EAGLE-1/2")
    assert spec.taps == (8,), "after the final norm"
    assert (spec.fuse.tokens, spec.fuse.bias, spec.norm) == (True, bias, False)
    assert not spec.layers[0].input_norm
    assert "layers.0.input_layernorm.weight" not in checkpoint.weights
    assert (spec.embedding, spec.head) == (Ownership.SAME, Ownership.TARGET)
    assert checkpoint.weights["embed_tokens.weight"] is target.embedding
    assert checkpoint.weights["lm_head.weight"] is target.head
    for name in ("fc.weight", "layers.0.mlp.up_proj.weight", "layers.0.self_attn.q_proj.weight"):
        assert torch.equal(value(checkpoint, name), stored[name])
    assert ("fc.bias" in checkpoint.weights) == bias


def test_an_embedding_that_was_trained_is_kept(
    tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    folder = synthetic.eagle1(tmp_path / "e", model)
    stored = load_file(folder / "model.safetensors")
    stored["embed_tokens.weight"][5, 5] += 1e-3
    synthetic.save_file(stored, folder / "model.safetensors")
    checkpoint = load_drafter(folder, target)
    assert checkpoint.spec.embedding is Ownership.OWN
    assert torch.equal(value(checkpoint, "embed_tokens.weight"), stored["embed_tokens.weight"])


def test_eagle3_of_safeailab(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    folder = synthetic.eagle3(tmp_path / "e", model)
    checkpoint = load_drafter(folder, target, "eagle3")
    spec, stored = checkpoint.spec, load_file(folder / "model.safetensors")
    assert (spec.kind, spec.source) == (Kind.EAGLE3, "SafeAILab EAGLE-3")
    assert spec.taps == (2, 4, 5), "what enters layers 2, L / 2 and L - 3"
    assert (spec.vocab_size, spec.draft_vocab_size, spec.mapped) == (96, 40, True)
    assert (spec.recycle, spec.position_shift) == (Recycle.PRE_NORM, 0)
    assert (spec.embedding, spec.head) == (Ownership.TARGET, Ownership.OWN)
    assert spec.rope is not None
    assert spec.rope.theta == 10000, "absent from its files; never the target's"
    layer = spec.layers[0]
    assert (layer.hidden_norm, layer.norm_before_residual, layer.attention.input_size) == (
        True,
        False,
        64,
    )
    kept = stored["t2d"].nonzero().reshape(-1)
    assert torch.equal(value(checkpoint, "d2t"), kept)
    assert torch.equal(
        value(checkpoint, "layers.0.hidden_norm.weight"), stored["midlayer.hidden_norm.weight"]
    )
    assert checkpoint.provenance["format"] == "SafeAILab EAGLE-3"


def test_eagle3_of_specforge(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    spec = load_drafter(
        synthetic.specforge_eagle3(tmp_path / "a", model, taps=[1, 3, 6]), target
    ).spec
    assert (spec.source, spec.taps) == ("SpecForge EAGLE-3", (2, 4, 7)), (
        "outputs of layers 1, 3 and 6"
    )
    assert spec.rope is not None
    assert (spec.rope.theta, spec.recycle) == (1e6, Recycle.PRE_NORM)
    spec = load_drafter(synthetic.specforge_eagle3(tmp_path / "b", model), target).spec
    assert spec.taps == (2, 4, 5)
    newer = synthetic.specforge_eagle3(tmp_path / "c", model, fc_norm=True, norm_output=True)
    checkpoint = load_drafter(newer, target)
    assert (checkpoint.spec.fuse.per_tap_norm, checkpoint.spec.recycle) == (True, Recycle.POST_NORM)
    assert "fc_norm.2.weight" in checkpoint.weights


def test_eagle3_of_modelopt(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    folder = synthetic.specforge_eagle3(tmp_path / "a", model, taps=[1, 3, 4], modelopt=True)
    checkpoint = load_drafter(folder, target)
    assert (checkpoint.spec.source, checkpoint.spec.taps) == ("ModelOpt EAGLE-3", (2, 4, 5))
    offsets = load_file(folder / "model.safetensors")["d2t"]
    assert torch.equal(value(checkpoint, "d2t"), offsets + torch.arange(40)), "proved without t2d"


def test_eagle3_of_deepspec(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    folder = synthetic.deepspec_eagle3(tmp_path / "a", model, [0, 2, 3, 5, 6])
    checkpoint = load_drafter(folder, target)
    spec = checkpoint.spec
    assert (spec.source, spec.taps, spec.speculative_tokens) == (
        "DeepSpec EAGLE-3",
        (1, 3, 4, 6, 7),
        7,
    )
    assert (spec.embedding, spec.head, spec.mapped) == (Ownership.SAME, Ownership.SAME, False)
    assert spec.layers[0].attention.qk_norm
    assert checkpoint.weights["lm_head.weight"] is target.head


@pytest.mark.parametrize(
    ("keys", "recycle", "fuse", "before"),
    [
        ({}, Recycle.PRE_NORM, (False, False), False),
        ({"norm_output": True, "fc_norm": True}, Recycle.POST_NORM, (True, False), False),
        (
            {"norm_before_fc": True, "norm_before_residual": True},
            Recycle.PRE_NORM,
            (False, True),
            True,
        ),
    ],
)
def test_eagle3_of_speculators(
    tmp_path: Path, model: PreTrainedModel, target: Target, keys: dict[str, bool], recycle: Recycle,
    fuse: tuple[bool, bool], before: bool,
) -> None:  # fmt: skip
    folder = synthetic.speculators_eagle3(tmp_path / "a", model, taps=[1, 4, 7], **keys)
    checkpoint = load_drafter(folder, target)
    spec = checkpoint.spec
    assert (spec.source, spec.taps, spec.speculative_tokens) == ("speculators eagle3", (1, 4, 7), 3)
    assert (spec.fuse.per_tap_norm, spec.fuse.pre_norm) == fuse
    assert (spec.recycle, spec.layers[0].norm_before_residual) == (recycle, before)
    assert (spec.position_shift, spec.embedding) == (1, Ownership.SAME)


@pytest.mark.parametrize("form", ["specforge_peagle", "speculators_peagle"])
def test_peagle(tmp_path: Path, model: PreTrainedModel, target: Target, form: str) -> None:
    checkpoint = load_drafter(getattr(synthetic, form)(tmp_path / "a", model), target, "eagle3")
    spec = checkpoint.spec
    assert spec.kind is Kind.PEAGLE
    assert spec.block is not None
    assert (spec.block.size, spec.block.mask_token_id, spec.block.anchor_first) == (6, 95, True)
    assert [layer.hidden_norm for layer in spec.layers] == [True, False]
    assert [layer.attention.input_size for layer in spec.layers] == [64, 32]
    assert spec.layers[0].norm_before_residual == (form == "speculators_peagle")
    assert (spec.embedding, spec.recycle) == (Ownership.OWN, Recycle.NONE)
    assert checkpoint.weights["mask_hidden"].type.shape == (96,)


@pytest.mark.parametrize(
    ("blocks", "shared", "prefix"), [(1, False, ""), (2, False, "medusa_head."), (1, True, "")]
)
def test_medusa(
    tmp_path: Path, model: PreTrainedModel, target: Target, blocks: int, shared: bool, prefix: str
) -> None:
    """B74: one matrix per head or the target's for all, told by the tensors, as are the number of heads and blocks."""
    folder = synthetic.medusa(tmp_path / "a", model, blocks=blocks, shared=shared, prefix=prefix)
    checkpoint = load_drafter(folder, target, "medusa")
    spec, stored = checkpoint.spec, load_file(folder / "model.safetensors")
    assert spec.medusa is not None
    assert (spec.medusa.heads, spec.medusa.blocks, spec.medusa.shared_lm_head) == (
        3,
        blocks,
        shared,
    )
    assert spec.taps == (8,)
    last = f"heads.2.blocks.{blocks - 1}"
    assert torch.equal(
        value(checkpoint, f"{last}.weight"), stored[f"{prefix}2.{blocks - 1}.linear.weight"]
    )
    head = checkpoint.weights["heads.1.lm_head.weight"]
    assert (head is target.head) == shared
    if not shared:
        assert torch.equal(head.load(), stored[f"{prefix}1.{blocks}.weight"])
