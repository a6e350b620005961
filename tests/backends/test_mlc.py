"""Folders for MLC, played by an engine that knows only MLC's ABI: transformers' text, and the traps on the way."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from filelock import FileLock
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.backends.mlc_engine import GREEDY, SPECULATIVE, Engine, Model, tensor
from tests.backends.mlc_folders import check_folder, folder_for_mlc, schema
from tests.conftest import by_night, greedy
from tests.ir.importers.drafters import reference, synthetic
from tests.passes import knowing_drafters

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
NEW = 24


def rounded(model: Path, folder: Path, noise: float) -> Path:
    """The model with matrices that bf16 can hold, after some noise: then `--quant bf16` loses nothing."""
    with FileLock(str(folder) + ".lock"):
        if not folder.exists():
            torch.manual_seed(2)
            made = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
            with torch.no_grad():
                for weight in made.parameters():
                    weight.add_(torch.randn_like(weight) * noise)
                    weight.copy_(weight.bfloat16())
            made.save_pretrained(folder)
            for tokens in (model / "tokenizer.json", model / "tokenizer_config.json"):
                (folder / tokens.name).write_bytes(tokens.read_bytes())
    return folder


@pytest.fixture(scope="module")
def model(tiny_model: Path, shared_folder: Path) -> Path:
    return rounded(tiny_model, shared_folder / "mlc-target", 0)


@pytest.fixture(scope="module")
def small_draft(tiny_model: Path, model: Path, shared_folder: Path) -> Path:
    drafter = rounded(tiny_model, shared_folder / "mlc-drafter", 0.01)
    return folder_for_mlc(
        model, shared_folder / "mlc-small-draft", "draft_model", drafter=str(drafter),
        num_speculative_tokens=(0, 3), quant="bf16",
    )  # fmt: skip


def test_small_draft_says_what_transformers_says(model: Path, small_draft: Path) -> None:
    engine = Engine(small_draft)
    found = engine.generate(PROMPT, NEW)
    assert found == greedy(model, PROMPT, len(found))
    assert {1, 4} <= set(engine.lengths), "drafts were kept, all and none of a round"


def test_the_plain_configuration_says_the_same(
    model: Path, small_draft: Path, tmp_path: Path
) -> None:
    """What an unmodified engine plays on a CPU."""
    plain = json.loads((small_draft / "engine-plain.json").read_text())
    assert plain["speculative_mode"] == "disable"
    for name in ("target", "drafter"):
        (tmp_path / name).symlink_to(small_draft / name)
    (tmp_path / "engine.json").write_text(json.dumps(plain))
    assert Engine(tmp_path).generate(PROMPT, NEW) == greedy(model, PROMPT, NEW)


def test_a_model_of_halves_keeps_them(small_draft: Path) -> None:
    """TVM's importer fails on products of bf16; these libraries multiply such weights in f32, and the tests compare."""
    for name in ("target", "drafter"):
        told = json.loads((small_draft / name / "tensor-cache.json").read_text())
        matrices = [
            r for shard in told["records"] for r in shard["records"] if len(r["shape"]) == 3
        ]
        assert {r["dtype"] for r in matrices} == {"bfloat16"}


def logits_of(model: PreTrainedModel, text: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([text])).logits[0].numpy()


def close(found: Any, want: Any) -> None:
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_trees_are_verified_and_committed(model: Path, small_draft: Path) -> None:
    """The kernels for token trees, which TVM gives its CPU cache in the wrong order; then a branch, and steps back."""
    eager = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    target = Model(small_draft / "target", small_draft / "target/model.so", batch=8)
    close(target.prefill(PROMPT), logits_of(eager, PROMPT)[-1])
    rows = [30, 31, 32, 33]
    found = target.forward("batch_verify", target.embed(rows), parents=[-1, 0, 0, 2])[0]
    for row, path in zip(found, ([30], [30, 31], [30, 32], [30, 32, 33]), strict=True):
        close(row, logits_of(eager, PROMPT + path)[-1])
    target.commit(3)
    text = [*PROMPT, 30, 32, 33]
    assert target.length == len(text)
    close(target.decode(40), logits_of(eager, [*text, 40])[-1])
    target.pop(2)
    close(target.decode(41), logits_of(eager, [*text[:-1], 41])[-1])


def test_two_texts_at_once(model: Path, small_draft: Path) -> None:
    """batch_prefill and batch_decode, of texts of different lengths."""
    eager = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    target = Model(small_draft / "target", small_draft / "target/model.so")
    tvm.get_global_func("vm.builtin.kv_state_add_sequence")(target.cache, 1)
    both, (first, second) = [5, 6, 7, 8], ([5, 6, 7], [8])
    at = tensor([2, 3], "int32")
    options: dict[str, Any] = {"sequences": (0, 1), "lengths": (3, 1)}
    found = target.forward("batch_prefill", target.embed(both), at, **options)
    close(found[0, 0], logits_of(eager, first)[-1])
    close(found[0, 1], logits_of(eager, second)[-1])
    found = target.forward("batch_decode", target.embed([9, 10]), sequences=(0, 1), lengths=(1, 1))
    close(found[0, 0], logits_of(eager, [*first, 9])[-1])
    close(found[1, 0], logits_of(eager, [*second, 10])[-1])


def test_the_engine_waits_for_ever_below_one_row_more_than_drafts(
    small_draft: Path, tmp_path: Path
) -> None:
    config = json.loads((small_draft / "engine.json").read_text())
    assert (
        min(config["max_num_sequence"], config["prefill_chunk_size"]) > config["spec_draft_length"]
    )
    for name in ("target", "drafter"):
        (tmp_path / name).symlink_to(small_draft / name)
    config["max_num_sequence"] = config["spec_draft_length"]
    (tmp_path / "engine.json").write_text(json.dumps(config))
    with pytest.raises(TimeoutError):
        Engine(tmp_path).generate(PROMPT, 1)


def test_small_kernels_do_what_their_names_say(small_draft: Path) -> None:
    draw = np.random.default_rng(0)
    loaded = Model(small_draft / "target", small_draft / "target/model.so").function
    vocabulary = 320
    logits = draw.standard_normal((3, vocabulary)).astype("float32")

    def applied(name: str, *more: tuple[Any, str]) -> Any:
        given = tensor(logits, "float32")
        loaded(name)(given, *(tensor(*m) for m in more))
        return given.numpy()

    found = applied(
        "apply_logit_bias_inplace", ([2, 0], "int32"), ([5, 7], "int32"), ([1.5, -2], "float32")
    )
    want = logits.copy()
    want[2, 5] += 1.5
    want[0, 7] -= 2
    np.testing.assert_array_equal(found, want)
    found = applied(
        "apply_penalty_inplace", ([2, 1], "int32"), ([0, 1, 1], "int32"), ([4, 9, 8], "int32"),
        ([3, 1, 2], "int32"), ([[0.5, 0.25, 2.0], [0.0, 0.0, 4.0]], "float32"),
    )  # fmt: skip
    want = logits.copy()
    for row, token, count, (presence, frequency, repetition) in (
        (2, 4, 3, (0.5, 0.25, 2.0)), (1, 9, 1, (0, 0, 4.0)), (1, 8, 2, (0, 0, 4.0)),
    ):  # fmt: skip
        value = want[row, token] - (presence + count * frequency)
        want[row, token] = value * repetition if value < 0 else value / repetition
    np.testing.assert_allclose(found, want, rtol=1e-6)
    allowed = draw.random((3, vocabulary)) < 0.5
    bits = np.packbits(allowed, axis=1, bitorder="little").view("int32")
    found = applied("apply_bitmask_inplace", ([1], "int32"), (bits, "int32"))
    want = logits.copy()
    want[1, ~allowed[1]] = np.finfo("float32").min
    np.testing.assert_array_equal(found, want)
    heat = np.array([0.7, 0.0, 2.0], "float32")
    found = loaded("softmax_with_temperature")(
        tensor(logits[:, None], "float32"), tensor(heat, "float32")
    ).numpy()
    want = torch.softmax(torch.tensor(logits / np.maximum(heat, 1e-9)[:, None]), -1)[
        :, None
    ].numpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-8)
    for kind in ("probs", "hidden_states"):
        source, at = draw.standard_normal((5, 6)).astype("float32"), np.array([4, 1], "int32")
        target = tensor(np.zeros((2, 6)), "float32")
        loaded(f"gather_{kind}")(tensor(source, "float32"), tensor(at, "int32"), target)
        np.testing.assert_array_equal(target.numpy(), source[at])
        target = tensor(np.zeros((5, 6)), "float32")
        loaded(f"scatter_{kind}")(tensor(source[:2], "float32"), tensor(at, "int32"), target)
        want = np.zeros((5, 6), "float32")
        want[at] = source[:2]
        np.testing.assert_array_equal(target.numpy(), want)


WRONG = {knowing_drafters.NEXT[knowing_drafters.NEXT[knowing_drafters.NEXT[11]]], 30}


@pytest.mark.parametrize("method", by_night(["eagle", "medusa"], "medusa"))
def test_trained_drafters_are_given_the_right_rows(method: str, shared_folder: Path) -> None:
    """A drafter that is right exactly if it reads the right hidden state and token: how much is kept is foretold."""
    folder = shared_folder / f"mlc-{method}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            knowing_drafters.target().save_pretrained(folder / "model")
            knowing_drafters.MAKERS[method](folder / "drafter", WRONG)
    out = folder_for_mlc(
        folder / "model", folder / "out", method, drafter=str(folder / "drafter"), num_speculative_tokens=(0, 3)
    )  # fmt: skip
    text = [5]
    for _ in range(60):
        text.append(knowing_drafters.NEXT[text[-1]])
    engine = Engine(out)
    found = engine.generate(text[:10], 40)
    assert found == text[10 : 10 + len(found)]
    assert found == greedy(folder / "model", text[:10], len(found))
    place, want = 11, []
    for length in engine.lengths:
        right = [t not in WRONG or t == 0 for t in text[place : place + 3]]
        want.append([*right, False].index(False) + 1)
        place += length
    assert engine.lengths == want
    assert len(set(want)) > 1, "some were kept, some not"


def test_an_eagle_drafts_what_eager_code_on_the_checkpoint_drafts(tmp_path: Path) -> None:
    """Random weights of the same shapes, so the libraries are those of the test above; attention counts here."""
    torch.manual_seed(4)
    model = knowing_drafters.target()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.4)
    model.save_pretrained(tmp_path / "model")
    drafter = synthetic.eagle1(tmp_path / "drafter", model)
    out = folder_for_mlc(
        tmp_path / "model", tmp_path / "out", "eagle", drafter=str(drafter), num_speculative_tokens=(0, 3)
    )  # fmt: skip
    engine = Engine(out)
    drafted: list[tuple[list[int], list[int]]] = []
    verify = engine._verify

    def watched(drafts: list[int], logits: Any) -> int:
        drafted.append((list(engine.text), list(drafts)))
        return verify(drafts, logits)

    engine._verify = watched  # type: ignore[method-assign]
    prompt = [7, 21, 4, 7, 21, 9, 15]
    found = engine.generate(prompt, 8)
    assert found == greedy(tmp_path / "model", prompt, len(found))
    # Of drafts that were kept MLC's drafter keeps its own rows too; the code reads the target's features there.
    kept = [length > 1 for length in engine.lengths]
    drafted = drafted[: [*kept, True].index(True) + 1]
    assert len(drafted) >= 3
    for text, drafts in drafted:
        assert drafts == reference.draft(drafter, model, text, len(drafts)), len(text)


def test_every_json_is_what_its_schema_says(small_draft: Path) -> None:
    engine = check_folder(small_draft, package_too=False)
    schema("engine").validate(json.loads((small_draft / "engine-plain.json").read_text()))
    assert not schema("engine").is_valid({**engine, "mode": "interactive"})
    assert not schema("engine").is_valid(
        {k: v for k, v in engine.items() if k != "max_num_sequence"}
    )
    for name in ("target", "drafter"):
        model = Model(small_draft / name, small_draft / name / "model.so")
        schema("metadata").validate(model.metadata)
        assert not [n for n in (*GREEDY, *SPECULATIVE) if not model.has(n)]
        assert set(model.metadata["memory_usage"]) == {
            "embed", "prefill", "decode", "batch_prefill", "batch_decode", "batch_verify", "get_logits",
            "batch_get_logits", "softmax_with_temperature", "alloc_embedding_tensor",
            *(f"{n}_to_last_hidden_states" for n in (
                "prefill", "decode", "batch_prefill", "batch_decode", "batch_verify",
            )),
        }  # fmt: skip


def test_what_switches_speculation_on(small_draft: Path) -> None:
    script = (small_draft / "rest.sh").read_text()
    assert subprocess.run(["sh", "-n", small_draft / "rest.sh"], check=False).returncode == 0
    assert "mlc_llm serve target --model-lib target/model.so" in script
    assert "--additional-models drafter,drafter/model.so --speculative-mode small_draft" in script
    assert '"spec_draft_length=3;max_num_sequence=4;prefill_chunk_size=4"' in script
    readme = (small_draft / "README.md").read_text()
    assert "waits for ever" in readme
    assert "verified_on_gpu: false" in readme
    assert "CPU sampler" in readme
