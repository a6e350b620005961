"""Every supported family: the imported program computes what transformers' eager attention computes."""

from __future__ import annotations

import pytest
import torch
from tiny_models import FAMILIES, difference, eager_logits, logits_of, prompt, tiny

from specc.errors import ModelError
from specc.ir import check
from specc.ir.dialect import ops
from specc.ir.evaluate import evaluate, fresh_state
from specc.ir.importers import attention
from specc.ir.importers.huggingface import import_model
from specc.ir.program import SpeculativeProgram
from specc.passes import pipelines


def rewritten_logits(program: SpeculativeProgram, tokens: torch.Tensor) -> torch.Tensor:
    """The last three rows, by verify_2 after a prefill in chunks; the rows before by verify_0."""
    done = pipelines.host("ngram", pipelines.Shape((0, 2), 64, 8), {})(program)
    state, last = fresh_state(done), len(tokens) - 3
    scored = []
    for begin in range(0, last, 8):
        at = torch.arange(begin, min(begin + 8, last))
        evaluate(done, "prefill", [tokens[at], at, at], state)
        # Decoding a row again writes what is there.
        scored += [
            evaluate(done, "verify_0", [tokens[i][None], i[None], i[None]], state)[0] for i in at
        ]
    at = torch.arange(last, len(tokens))
    return torch.cat([*scored, evaluate(done, "verify_2", [tokens[at], at, at], state)[0]])


@pytest.mark.parametrize("family", FAMILIES)
def test_same_logits_as_transformers(family: str) -> None:
    kind, values = FAMILIES[family]
    model = tiny(kind, **values)
    want = eager_logits(model, prompt())
    program = import_model(model, family)
    check(program)
    layers = [
        n.args[7] for n in program.functions["target"].graph.nodes
        if n.target is ops.attention.default
    ]  # fmt: skip
    assert layers == list(range(program.model.num_layers))
    assert difference(logits_of(program, prompt()), want) < 1e-5
    assert difference(rewritten_logits(program, prompt()), want) < 1e-5
    # The model is handed back as it came.
    assert torch.equal(eager_logits(model, prompt()), want)


def test_windows_are_seen() -> None:
    """A window smaller than the prompt is read off the mask, layer by layer."""
    program = import_model(tiny(*FAMILIES["gemma3"][:1], **FAMILIES["gemma3"][1]), "gemma3")
    windows = [
        n.args[5] for n in program.functions["target"].graph.nodes
        if n.target is ops.attention.default
    ]  # fmt: skip
    assert windows == [8, 0]


@pytest.mark.parametrize(("length", "word"), [(16, "short"), (64, "long")])
def test_longrope_is_cut_by_the_longest_sequence(length: int, word: str) -> None:
    model = tiny(FAMILIES["phi3-longrope"][0], **FAMILIES["phi3-longrope"][1])
    tokens = prompt() if word == "long" else prompt()[:16]
    program = import_model(model, "phi3", max_model_len=length)
    assert word in program.provenance["rope"]
    assert program.model.max_position == length
    assert difference(logits_of(program, tokens), eager_logits(model, tokens)) < 1e-5


def test_dynamic_rope_is_refused_beyond_its_length() -> None:
    kind, values = FAMILIES["llama-rope-dynamic"]
    assert import_model(tiny(kind, **values), "m", 64).model.max_position == 64
    with pytest.raises(ModelError, match="SPECC-E0205") as error:
        import_model(tiny(kind, **values), "m", 65)
    assert "--max-model-len 64" in error.value.cure


class Unusual(torch.nn.Module):
    layer_idx = 3


def test_unknown_argument_of_attention_is_named() -> None:
    x = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ModelError, match="SPECC-E0211") as error:
        attention._attention(Unusual(), x, x, x, torch.tensor(0), position_bias=x)
    assert "position_bias" in str(error.value)
    assert "layer 3 (Unusual)" in error.value.where
    with pytest.raises(ModelError, match="SPECC-E0212"):
        attention._attention(Unusual(), x, x, x, None)


@pytest.mark.parametrize(
    ("kind", "values", "code"),
    [
        ("falcon", {}, "SPECC-E0203"),
        ("bloom", {"n_head": 4}, "SPECC-E0203"),
        ("mamba", {}, "SPECC-E0203"),
        ("lfm2", {}, "SPECC-E0203"),
        ("llama4_text", {"head_dim": 8, "num_local_experts": 2}, "SPECC-E0203"),
        ("deepseek_v2", {
            "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1,
            "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        }, "SPECC-E0225"),  # (its rotation is in complex numbers)
    ],
)  # fmt: skip
def test_refused_by_name(kind: str, values: dict[str, object], code: str) -> None:
    with pytest.raises(ModelError, match=code) as error:
        import_model(tiny(kind, **values), kind)
    assert error.value.where
    assert error.value.cure
