"""CUDA: drafters in the graph, and halves, on the double of NVIDIA's driver."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from specc.backends.cuda.forms import cuda_form
from specc.backends.cuda.leaves import generate
from specc.backends.cuda.placement import placed
from specc.backends.plan import plans_of
from specc.ir import DynamicTree, Role, Tree
from specc.passes.halve_products import HalveProducts
from specc.runtime import Manifest
from tests.backends.cuda.cubins import cubins
from tests.backends.cuda.playing import python
from tests.backends.cuda.recorded import compiled_for
from tests.passes import knowing_drafters, toy

ARCH = "sm_90"


def test_a_trained_drafter_of_halves_is_believed_as_far_as_it_knows(
    libcuda: Path, tmp_path: Path
) -> None:
    """Drafts are wrong where the drafter is made so, and nowhere else. A file of bf16 gives products of bf16.

    It is code for an A100, where other tests have an H100's, and its arena is split as asked.
    """
    wrong = {7}
    knowing_drafters.target().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    drafter = knowing_drafters.MAKERS["eagle3"](tmp_path / "drafter", wrong)
    artifact = compiled_for(
        "sm_80", tmp_path / "model", tmp_path, "eagle3", drafter=str(drafter), max_model_len=32, prefill_chunk=8,
        num_speculative_tokens=(0, 4), kv_arena="30:70",
    )  # fmt: skip
    manifest = Manifest.read(artifact)
    assert manifest.cuda is not None
    assert manifest.cuda.functions["round_4"].waits == 1
    assert manifest.approximations == ("bf16 products", "bf16 caches")
    assert manifest.arena is not None
    (plan,) = manifest.arena.plans
    zones = {z.name: z.bytes for z in plan.zones}
    assert zones["drafter"] / (zones["drafter"] + zones["target"]) == pytest.approx(0.3, abs=0.05)
    of = {arch for arch, _ in cubins((artifact / "model.so").read_bytes())}
    assert of == {80}
    text = [9]
    while len(text) < 24:
        text.append(knowing_drafters.NEXT[text[-1]])
    ks, made = [4, 4], 7
    asked = json.dumps([{"prompt": text[:made], "rounds": ks}])
    told = python(
        "tests.backends.cuda.interpreted", str(tmp_path), str(libcuda), given=asked,
        TRITON_INTERPRET="1",
    )  # fmt: skip
    rounds = json.loads(told)["answers"][0]["rounds"]
    for k, tokens in zip(ks, rounds, strict=True):
        right = [t not in wrong for t in text[made : made + k]]
        length = [*right, False].index(False) + 1
        assert tokens == text[made : made + length]
        made += length
    assert list(map(len, rounds)) == [5, 3]


CHAINS = ("draft_model", "layerskip", "eagle:adaptive", "eagle3", "peagle", "dspark", "medusa")
TREES = ("eagle3", "peagle", "dspark", "medusa")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("method", "tree"), [*((m, None) for m in CHAINS), *((m, DynamicTree(5, 3)) for m in TREES)]
)
def test_every_drafter_waits_once_a_round(method: str, tree: Tree | None, dtype: str) -> None:
    """Choosing tokens between its steps is the GPU's too, and what a tree is made of."""
    program = toy.after("fuse-round", None, method, tree)
    if dtype != "f32":
        program = HalveProducts(dtype)(program).program
    form = cuda_form(program)
    known = [f.name for f in form.functions.values() if f.role is Role.LEAF]
    plans = {name: placed(plan, known) for name, plan in plans_of(form).items()}
    for played in form.rounds:
        entries = [i.entry for i in plans[played.function].instructions]
        assert entries.count("cuda.fetch") == 1
        assert entries.count("cuda.upload") == 1


def test_what_a_tree_is_made_of_becomes_machine_code() -> None:
    """Kernels that only trees have. (What they compute, Triton's interpreter tells.)"""
    form = cuda_form(toy.after("fuse-round", None, "eagle3", DynamicTree(5, 3)))
    made = {"candidates", "best", "prune_tree", "accept_tree", "cache_move"}
    found = {}
    for name, function in form.functions.items():
        kind = name.split(".")[0]
        if kind in made - found.keys():
            found[kind] = re.findall(r"cubin_(\w+)\[\]", generate(function, ARCH))
    assert {kind: len(kernels) for kind, kernels in found.items()} == {
        "candidates": 2, "best": 2, "prune_tree": 2, "accept_tree": 2, "cache_move": 2,
    }  # fmt: skip
