"""Checkpoints whose drafts can be foretold, in the true layouts, for a target that only counts in a circle.

The target's layers add nothing: after token v it says NEXT[v], whatever came before. A drafter finds NEXT of a token
(EAGLE-1, from the embedding of the last) or of a hidden state (EAGLE-3, Medusa), so it is right exactly if it was given
the right row of features, the right token, and its own last state; `errors` are tokens in whose place it says 0, and
`second` those that it likes a little less than the token after them: it says that, but a tree has both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specc.runtime import Session
from tests.ir.importers.drafters import synthetic

VOCAB = 32
NEXT = [(5 * v + 7) % VOCAB for v in range(VOCAB)]
"""One circle through all tokens."""
_SCALE = VOCAB**0.5
"""What a norm makes of the one in a row of zeros."""


def target() -> LlamaForCausalLM:
    """The embedding of v is row v of the identity; the head leads on to NEXT[v]."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=VOCAB,
            intermediate_size=8,
            num_hidden_layers=8,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    ).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(VOCAB))
        model.get_output_embeddings().weight.copy_(_step(1))
    return model


def _step(times: int, errors: Collection[int] = (), second: Collection[int] = ()) -> torch.Tensor:
    """The matrix that takes row v of the identity to that of the token `times` steps on; no step ends in `errors`."""
    matrix = torch.zeros(VOCAB, VOCAB)
    for v in range(VOCAB):
        to = v
        for _ in range(times):
            to = NEXT[to]
        if to not in errors:
            matrix[to, v] = 1
        if to in second:
            matrix[(to + 1) % VOCAB, v] = 1.05
    return matrix


def eagle(folder: Path, errors: Collection[int]) -> Path:
    synthetic.eagle1(folder, target())
    tensors = _silent(load_file(folder / "model.safetensors"), "layers.0")
    right = torch.eye(VOCAB) * torch.tensor([NEXT[v] not in errors for v in range(VOCAB)])
    tensors["fc.weight"] = torch.cat([_SCALE * right, torch.zeros(VOCAB, VOCAB)], 1)
    save_file(tensors, folder / "model.safetensors")
    return folder


def eagle3(folder: Path, errors: Collection[int], second: Collection[int] = ()) -> Path:
    """Its MLP takes the feature one step on, and its head another."""
    synthetic.eagle3(folder, target(), drafts=VOCAB)
    tensors = _silent(load_file(folder / "model.safetensors"), "midlayer")
    tensors["fc.weight"] = torch.cat([torch.eye(VOCAB) / 3] * 3, 1)
    wide = torch.eye(tensors["midlayer.mlp.up_proj.weight"].shape[0], VOCAB)
    gate = torch.nn.functional.silu(torch.tensor(_SCALE)) * _SCALE
    tensors["midlayer.mlp.gate_proj.weight"], tensors["midlayer.mlp.up_proj.weight"] = (
        wide,
        wide.clone(),
    )
    tensors["midlayer.mlp.down_proj.weight"] = (_step(1) - torch.eye(VOCAB)) @ wide.T / gate
    tensors["midlayer.post_attention_layernorm.weight"] = torch.ones(VOCAB)
    tensors["norm.weight"] = torch.ones(VOCAB)
    tensors["lm_head.weight"] = _step(1, errors, second)
    save_file(tensors, folder / "model.safetensors")
    return folder


def medusa(folder: Path, errors: Collection[int], second: Collection[int] = ()) -> Path:
    synthetic.medusa(folder, target(), heads=4)
    tensors = load_file(folder / "model.safetensors")
    for head in range(4):
        tensors[f"{head}.0.linear.weight"].zero_()
        tensors[f"{head}.0.linear.bias"].zero_()
        tensors[f"{head}.1.weight"] = _step(head + 2, errors, second)
    save_file(tensors, folder / "model.safetensors")
    return folder


def dspark(folder: Path, errors: Collection[int], second: Collection[int] = ()) -> Path:
    """Its block says nothing; its Markov head goes on from the token before."""
    synthetic.deepspec_dspark(folder, target(), [0, 3, 6], markov_rank=VOCAB)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"].zero_()
    tensors["markov_head.markov_w1.weight"] = torch.eye(VOCAB)
    tensors["markov_head.markov_w2.weight"] = 4 * _step(1, errors, second)
    tensors["confidence_head.proj.weight"] = torch.zeros(1, 2 * VOCAB)
    save_file(tensors, folder / "model.safetensors")
    return folder


def _silent(tensors: dict[str, torch.Tensor], layer: str) -> dict[str, torch.Tensor]:
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"{layer}.{name}.weight"].zero_()
    return tensors


MAKERS: dict[str, Callable[..., Path]] = {
    "eagle": eagle, "eagle3": eagle3, "medusa": medusa, "dspark": dspark,
}  # fmt: skip


def play(
    session: Session, text: Sequence[int], wrong: Collection[int], places: range, ks: Sequence[int]
) -> int:
    """Rounds of each of `ks` in turn, while the session, which holds `text` up to there, is within `places`.

    Each gives what follows in `text`, and keeps the drafts before the first that is made `wrong`. Returns where it is.
    """
    made, k_of = places.start, cycle(ks)
    while made < places.stop:
        k = next(k_of)
        session.set("num_speculative_tokens", k)
        right = [t not in wrong or t == 0 for t in text[made : made + k]]
        length = [*right, False].index(False) + 1
        before = session.stat("accepted_tokens")
        assert [session.next() for _ in range(length)] == list(text[made : made + length])
        assert session.stat("accepted_tokens") - before == length - 1
        made += length
    return made
