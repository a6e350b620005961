"""Drafters that cannot be used as they are: each is refused with code, what was found and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from specc.errors import ModelError
from specc.ir.importers.drafters import Target, load_drafter, load_native
from tests.ir.importers.drafters import synthetic, synthetic_mtp
from tests.ir.importers.drafters.test_parity import DRAFTERS

Edit = Callable[[Path], None]


def config(**values: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return edit


def without(*keys: str) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in values.items() if k not in keys}))

    return edit


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        change(found)
        save_file(found, path)

    return edit


def drop(name: str) -> Edit:
    return tensors(lambda t: t.pop(name))


def put(name: str, value: torch.Tensor) -> Edit:
    return tensors(lambda t: t.update({name: value}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


def lossy(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    values["speculators_config"]["proposal_methods"][0]["verifier_accept_k"] = 2
    path.write_text(json.dumps(values))


def verifier(*names: str) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        found = json.loads(path.read_text())
        found["speculators_config"]["verifier"]["architectures"] = list(names)
        path.write_text(json.dumps(found))

    return edit


def inside(key: str, **values: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        found = json.loads(path.read_text())
        found[key].update(values)
        path.write_text(json.dumps(found))

    return edit


said, section = partial(inside, "speculators_config"), partial(inside, "dflash_config")

FP8 = torch.zeros(48, 32).to(torch.float8_e4m3fn)
INT8 = torch.zeros(40, 32, dtype=torch.int8)
MLP = "midlayer.mlp.up_proj.weight"
REFUSED: dict[str, tuple[str, Edit, str, str]] = {
    "pickle": ("eagle3-safeailab", pickled, "E0271", "save_file"),
    "mask embedding in a pickle": (
        "dflash-zlab", lambda f: (f / "mask_embedding.pt").touch(), "E0271", "mask_embedding.pt"),
    "cut off": ("eagle3-safeailab", cut, "E0207", "damaged"),
    "no weights": ("medusa", lambda f: (f / "model.safetensors").unlink(), "E0202", "no weights"),
    # B64: a head that is missing would be random.
    "b64 missing head": ("eagle3-safeailab", drop("lm_head.weight"), "E0274", "lm_head.weight"),
    "missing tensor": ("eagle3-safeailab", drop(MLP), "E0274", MLP),
    "missing bias": ("eagle1", config(bias=True), "E0274", "fc.bias"),
    "missing bias, no key": ("eagle1", without("bias"), "E0274", "fc.bias"),
    "a bias that is not said": ("eagle1-bias", config(bias=False), "E0275", "fc.bias"),
    "missing Medusa head": ("medusa", tensors(lambda t: [t.pop(n) for n in list(t) if n[0] == "1"]), "E0274", "0, 2"),
    "missing mask feature": ("peagle-speculators", drop("mask_hidden"), "E0274", "mask_hidden"),
    "missing map": ("eagle3-safeailab", tensors(lambda t: [t.pop("d2t"), t.pop("t2d")]), "E0274", "d2t"),
    "extra tensor": ("eagle3-safeailab", put("midlayer.extra.weight", torch.zeros(3)), "E0275", "midlayer.extra"),
    "extra layer": ("dflash-zlab", config(num_hidden_layers=1, layer_types=["full_attention"]), "E0275", "layers.1"),
    "wrong shape": ("eagle3-safeailab", put(MLP, torch.zeros(47, 32)), "E0276", r"\[47, 32\]"),
    "other number of taps": ("eagle3-specforge", config(
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3]}), "E0276", r"fc.weight"),
    "map of floats": ("eagle3-safeailab", put("d2t", torch.zeros(40)), "E0276", "F32"),
    # B70: quantised heads.
    "quantised by config": ("eagle3-safeailab", config(quantization_config={"quant_method": "fp8"}), "E0277", "fp8"),
    "quantised to fp8": ("eagle3-safeailab", put(MLP, FP8), "E0277", "F8_E4M3"),
    "b70 quantised head": ("eagle3-safeailab", put("lm_head.weight", INT8), "E0277", "I8"),
    "scales left": ("eagle3-safeailab", put("midlayer.mlp.weight_scale", torch.ones(1)), "E0277", "weight_scale"),
    "unknown key": ("eagle3-safeailab", config(hidden_mix="twice"), "E0278", "hidden_mix"),
    "unknown key in a section": ("dflash-zlab", section(denoising_steps=2), "E0278", "denoising_steps"),
    "biases in the MLP": ("eagle3-safeailab", config(mlp_bias=True), "E0278", "mlp_bias"),
    "unknown activation": ("eagle3-safeailab", config(hidden_act="swish2"), "E0278", "hidden_act"),
    "no number": ("eagle3-safeailab", config(hidden_size="32"), "E0278", "hidden_size"),
    "rope that looks at the length": (
        "eagle3-specforge", config(rope_scaling={"type": "dynamic", "factor": 2.0}), "E0278", "dynamic"),
    "rope of its own for each kind of layer": ("eagle3-speculators", config(
        rope_parameters={"sliding_attention": {"rope_theta": 1e4}}), "E0278", "sliding_attention"),
    "no base of the rope": ("eagle3-specforge", config(rope_theta=[]), "E0278", "rope_theta"),
    "a rope in part": ("eagle3-specforge", config(partial_rotary_factor=[1]), "E0278", "partial_rotary_factor"),
    "a rope in more than all": ("eagle3-specforge", config(partial_rotary_factor=2), "E0278", "partial_rotary_factor"),
    "no rope": ("eagle3-specforge", config(rope_scaling=[1]), "E0278", "rope_scaling"),
    "a word for a rope": ("eagle3-specforge", config(rope_parameters="yarn"), "E0278", "rope_parameters"),
    "a rope without its factor": ("eagle3-specforge", config(rope_scaling={"type": "linear"}), "E0278", "linear"),
    "methods that are lists": ("eagle3-speculators", said(proposal_methods=[[]]), "E0278", "proposal_methods"),
    "methods that are a number": ("eagle3-speculators", said(proposal_methods=3), "E0278", "proposal_methods"),
    "architectures that are objects": (
        "eagle3-speculators", said(verifier={"architectures": [{}]}), "E0278", "architectures"),
    "one architecture": ("eagle3-speculators", said(verifier={"architectures": 1}), "E0278", "architectures"),
    "more drafts than memory": ("eagle3-safeailab", config(draft_vocab_size=1 << 60), "E0276", "d2t"),
    "more layers than memory": ("peagle-specforge", config(num_hidden_layers=1 << 60), "E0274", "layers"),
    "no mask token": ("peagle-specforge", without("mask_token_id"), "E0278", "given to the trainer"),
    "both norms before fc": ("eagle3-speculators", config(fc_norm=True, norm_before_fc=True), "E0278", "fc_norm"),
    "lossy acceptance": ("eagle3-speculators", lossy, "E0278", "verifier_accept_k"),
    "last hidden state alone": (
        "eagle3-specforge", config(eagle_config={"use_aux_hidden_state": False}), "E0278", "use_aux_hidden_state"),
    "Medusa heads on an EAGLE": (
        "eagle3-modelopt", config(eagle_config={"parallel_draft_step": 4}), "E0278", "parallel_draft_step"),
    "contradicting layouts": ("dflash-zlab", config(
        sample_from_anchor=True, query_zero_predicts_next=False), "E0278", "sample_from_anchor"),
    "no word on the layout": ("dspark-speculators-old", config(block_size=8), "E0278", "sample_from_anchor"),
    "sinks": ("dflash-zlab", section(attention_sink_bias=True), "E0278", "attention_sink_bias"),
    "keys of DFlash-2": ("dflash-zlab", section(conv_kernel_size=2), "E0278", "DFlash-2"),
    "window without a size": ("dflash-zlab-window", config(sliding_window=None), "E0278", "sliding_window"),
    "a Markov head of another kind": ("dspark-deepspec-vanilla", config(markov_head_type="gru"), "E0278", "gru"),
    "other vocabulary": ("dflash-zlab", config(vocab_size=64), "E0273", "vocabulary"),
    "other hidden size": ("eagle3-safeailab", config(hidden_size=64), "E0273", "hidden size"),
    "other number of layers": ("dflash-zlab", config(num_target_layers=9), "E0273", "number of layers"),
    "other architecture": ("eagle3-speculators", verifier("Qwen3ForCausalLM"), "E0273", "architecture"),
    "tap after the final norm": ("dflash-zlab", section(target_layer_ids=[1, 3, 7]), "E0273", "taps"),
    "mask token beyond the embedding": ("dflash-zlab", section(mask_token_id=96), "E0273", "mask token"),
    "map out of range": ("eagle3-modelopt", put("d2t", torch.full((40,), 90)), "E0279", "neither"),
    "map unlike t2d": ("eagle3-safeailab", tensors(lambda t: t["t2d"].logical_not_()), "E0279", "neither"),
    "map of two readings": ("eagle3-modelopt", put("d2t", torch.arange(40) + 2), "E0279", "offsets or ids"),
    "DFlash-2": ("dflash-zlab", config(architectures=["DFlash2DraftModel"]), "E0272", "DFlash-2"),
    "Domino": ("dflash-zlab", config(architectures=["DominoDraftModel"]), "E0272", "Domino"),
    "DeepSeek's without its attention": (
        "eagle3-modelopt", config(architectures=["Eagle3DeepseekV2ForCausalLM"]), "E0278", "kv_lora_rank"),
    "DeepSeek's with experts": (
        "eagle3-deepseek", put("layers.0.mlp.gate.weight", torch.zeros(4, 32)), "E0275", "mlp.gate"),
    "taps counted otherwise": ("eagle3-deepseek", config(num_aux_hidden_states=4), "E0278", "num_aux_hidden_states"),
    "Domino by its projector": ("dflash-zlab", section(projector_type="domino"), "E0278", "Domino"),
    "unknown speculators": ("eagle3-speculators", config(speculators_model_type="mlp"), "E0272", "speculators mlp"),
    "nothing known": ("eagle3-safeailab", tensors(lambda t: t.clear() or t.update(x=torch.zeros(1))), "E0272", "known"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    name, edit, code, words = REFUSED[what]
    folder = DRAFTERS[name](tmp_path / "drafter", model)
    edit(folder)
    with pytest.raises(ModelError, match=words) as refusal:
        load_drafter(folder, target)
    assert refusal.value.code == f"SPECC-{code}"
    assert refusal.value.cure
    assert str(folder) in refusal.value.where


def test_values_that_are_no_numbers(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    folder = DRAFTERS["eagle3-safeailab"](tmp_path / "drafter", model)
    put(MLP, torch.full((48, 32), torch.nan))(folder)
    with pytest.raises(ModelError, match="SPECC-E0207"):
        load_drafter(folder, target).weights["layers.0.mlp.up_proj.weight"].load()


@pytest.mark.parametrize(
    ("name", "asked", "right"),
    [
        ("dspark-deepspec-vanilla", "mtp", "dspark"), ("eagle1", "eagle3", "eagle"),
        ("eagle3-safeailab", "eagle", "eagle3"), ("dflash-deepspec", "dspark", "dflash"),
        ("medusa", "eagle", "medusa"),
    ],
)  # fmt: skip
def test_b72_another_method(
    name: str, asked: str, right: str, tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    """The refusal holds the command that fits."""
    folder = DRAFTERS[name](tmp_path / "drafter", model)
    with pytest.raises(ModelError, match="another method") as refusal:
        load_drafter(folder, target, asked)
    assert refusal.value.cure == f"specc compile tiny --method {right} --drafter {folder}"
    assert load_drafter(folder, target, right).spec.kind.method == right


def test_a_whole_model_is_no_head(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="--method draft_model") as refusal:
        load_drafter(tmp_path / "model", target)
    assert refusal.value.code == "SPECC-E0272"


def test_a_gguf_is_refused_with_the_reason(tmp_path: Path, target: Target) -> None:
    with pytest.raises(ModelError, match=r"converted from"):
        load_drafter(tmp_path / "eagle3.gguf", target)


def test_targets_whose_embedding_or_head_does_more(
    tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    """What a drafter borrows must be all that the target does with it."""
    folder = DRAFTERS["dflash-zlab"](tmp_path / "a", model)
    with pytest.raises(ModelError, match="input_embedding_scale"):
        load_drafter(folder, replace(target, scales_embedding=True))
    with pytest.raises(ModelError, match="its head differs"):
        load_drafter(folder, replace(target, head_bias=True))
    own = DRAFTERS["eagle3-safeailab"](tmp_path / "b", model)
    assert (
        load_drafter(own, replace(target, scales_embedding=True, head_bias=True)).spec.source
        == "SafeAILab EAGLE-3"
    )


def test_a_verifier_that_wraps_the_target(
    tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    folder = DRAFTERS["eagle3-speculators"](tmp_path / "a", model)
    verifier("Llama4ForConditionalGeneration")(folder)
    assert load_drafter(folder, target).spec.source == "speculators eagle3"


def test_ids_and_offsets(tmp_path: Path, model: PreTrainedModel, target: Target) -> None:
    """A converter that writes ids where offsets are usual is seen by t2d, and by the range alone."""
    folder = synthetic.eagle3(tmp_path / "drafter", model)
    kept = load_file(folder / "model.safetensors")["t2d"].nonzero().reshape(-1)
    put("d2t", kept)(folder)
    checkpoint = load_drafter(folder, target)
    assert torch.equal(checkpoint.weights["d2t"].load(), kept)
    assert checkpoint.spec.conventions["vocabulary"] == "ids"
    drop("t2d")(folder)
    assert torch.equal(load_drafter(folder, target).weights["d2t"].load(), kept)


def test_b58_padding_of_the_vocabulary(
    tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    """A head padded to 128 rows for a target of 96 ids is the same head; another vocabulary is not."""
    folder = synthetic.deepspec_dspark(tmp_path / "drafter", model, [0, 3, 6], vocab_size=128)
    padded = (
        "lm_head.weight",
        "embed_tokens.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
    )
    tensors(
        lambda t: t.update({n: torch.cat([t[n], torch.zeros(32, t[n].shape[1])]) for n in padded})
    )(folder)
    checkpoint = load_drafter(folder, target)
    assert checkpoint.spec.draft_vocab_size == 96
    assert checkpoint.weights["lm_head.weight"] is target.head


def test_models_without_a_layer_that_drafts(
    tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    folder = synthetic_mtp.deepseek(tmp_path / "a", model, num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match="no MTP layer in its files"):
        load_native(folder, target)
    folder = synthetic_mtp.qwen(tmp_path / "b", model)
    tensors(lambda t: [t.pop(n) for n in list(t) if n.startswith("mtp.")])(folder)
    with pytest.raises(ModelError, match="although its configuration counts 1"):
        load_native(folder, target)
    folder = synthetic_mtp.qwen(tmp_path / "c", model)
    put("mtp.layers.1.input_layernorm.weight", torch.zeros(32))(folder)
    with pytest.raises(ModelError, match="2 MTP layers, one for each depth"):
        load_native(folder, target)
    folder = synthetic_mtp.qwen(tmp_path / "d", model)
    put("mtp.0.main_proj.weight", torch.zeros(32, 96))(folder)
    with pytest.raises(ModelError, match="DeepSeek-V4"):
        load_native(folder, target)
    with pytest.raises(ModelError, match="read from safetensors"):
        load_native(folder / "model.safetensors", target)
    folder = synthetic_mtp.mimo(tmp_path / "e", model)
    drop("model.mtp_layers.0.hidden_layernorm.weight")(folder)
    with pytest.raises(ModelError, match="SPECC-E0274"):
        load_native(folder, target)


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_group", 3), ("n_group", 4), ("topk_group", 3), ("num_experts_per_tok", 3)],
)
def test_experts_that_cannot_be_chosen(
    key: str, value: int, tmp_path: Path, model: PreTrainedModel, target: Target
) -> None:
    """Of 4 experts in 2 groups, of which one is chosen."""
    folder = synthetic_mtp.deepseek(tmp_path / "a", model, **{key: value})
    with pytest.raises(ModelError, match=f"SPECC-E0278.*{key}"):
        load_native(folder, target)
