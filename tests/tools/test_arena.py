"""`--kv-arena`: any split says the same, one that cannot hold the context is refused, and damage is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specc import cli, flags
from specc.backends.reference.executor import ReferenceArtifact
from specc.backends.reference.memory import Memory
from specc.errors import RequestError, UsageError
from specc.runtime import Artifact, Manifest
from tests.conftest import compiled

PROMPT = [9, 8, 7, 9, 8]


@pytest.mark.parametrize(
    ("text", "splits", "size"),
    [
        ("auto", (), 0), ("auto@64M", (), 64_000_000), ("30:70", ((30, 70),), 0),
        ("3:7@1.2G", ((3, 7),), 1_200_000_000), ("30:70,20:80", ((30, 70), (20, 80)), 0),
    ],
)  # fmt: skip
def test_what_the_flag_says(text: str, splits: tuple[tuple[int, int], ...], size: int) -> None:
    assert flags.arena("--kv-arena", text) == (splits, size)


@pytest.mark.parametrize(
    "text",
    ["", "30", "30:0", "0:100", "30:70:0", "a:b", "30:70,", "1:2,3:4,5:6", "auto@", "auto@0", "30:70@x", "-3:7", "@5M"],
)  # fmt: skip
def test_what_it_cannot_say(text: str) -> None:
    with pytest.raises(UsageError, match="--kv-arena") as refused:
        flags.arena("--kv-arena", text)
    assert refused.value.code == "SPECC-E0103"


@pytest.mark.parametrize(
    ("arena", "method"),
    [
        ("30:70", "ngram"),
        ("30:70,20:80", "draft_model"),
        ("50:50@20k", "draft_model"),
        ("auto@20k", "ngram"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path, arena: str, method: str,
) -> None:  # fmt: skip
    drafter = ["--drafter", str(tiny_model)] if method == "draft_model" else []
    arguments = [
        "compile",
        str(tiny_model),
        "--method",
        method,
        *drafter,
        "--kv-arena",
        arena,
        "--json",
    ]
    assert cli.main([*arguments, "-o", str(tmp_path / "art")]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "SPECC-E0377"
    assert arena.partition("@")[0] in error["what"] + error["found"]
    assert not (tmp_path / "art").exists()


@pytest.mark.parametrize("backend", ["inductor", "reference"])
def test_any_split_says_the_same(tiny_model: Path, shared_folder: Path, backend: str) -> None:
    """Speculation in a split arena against plain decoding in the same, and in one that is not split."""
    said = []
    for arena in ("auto", "30:70@1M"):
        name = f"tiny-arena-{backend}-{arena.partition(':')[0]}.specc"
        path = compiled(
            tiny_model, shared_folder / name, "draft_model", drafter=str(tiny_model), backend=backend,
            kv_arena=arena,
        )  # fmt: skip
        manifest = Manifest.read(path)
        assert manifest.arena is not None
        assert manifest.arena.writes > 0
        zones = {z.name: z.bytes for z in manifest.arena.plans[0].zones}
        if arena != "auto":
            assert zones == {"target": 700_000 // 4096 * 4096, "drafter": 300_000 // 4096 * 4096}
        said.append([_generated(path, k) for k in (0, 2, 4)])
    assert len({tuple(tokens) for arm in said for tokens in arm}) == 1


def _generated(path: Path, k: int) -> list[int]:
    if Manifest.read(path).backend == "reference":
        artifact = ReferenceArtifact.load(path)
        return list(
            artifact.generate(PROMPT, max_tokens=12, num_speculative_tokens=k, ignore_eos=True)
        )
    with Artifact.load(path) as engine:
        options = {"guard_rounds": 1}
        asked: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "options": options}
        return list(engine.generate(PROMPT, **asked, num_speculative_tokens=k).token_ids)


def test_inspect_draws_it(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    assert cli.main(["inspect", str(tiny_artifact), "--memory"]) == 0
    text = capsys.readouterr().out
    assert "writes proved to stay in their buffers" in text
    assert text.count("guard page") == 2
    assert cli.main(["inspect", str(tiny_artifact), "--memory", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (plan,) = shown["arena"]["plans"]
    assert plan["bytes"] == shown["memory"]["state_bytes"]
    assert len(plan["zones"][0]["buffers"]) == len(shown["state"]) == 8


def test_guards_are_looked_at_as_often_as_asked(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        for every, looks in ((1, 20), (8, 3), (0, 0), (64, 1)):  # the end of a text is one
            session.rewind(0)
            session.configure(
                max_tokens=20, ignore_eos=True, num_speculative_tokens=0, guard_rounds=every
            )
            session.append(PROMPT)
            assert len(list(session.iterate())) == 20
            assert session.stat("guard_checks") == looks
        with pytest.raises(RequestError, match="SPECC-E0601"):
            session.set("guard_rounds", -1)


def test_run_takes_the_option(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    arguments = ["run", str(tiny_artifact), "--token-ids", "1,2", "--max-tokens", "2"]
    assert cli.main([*arguments, "--guard-rounds", "1"]) == 0
    capsys.readouterr()
    assert cli.main([*arguments, "--guard-rounds", "-1", "--json"]) == 2


def test_plain_torch_looks_too(tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    memory = Memory(manifest)
    assert {n: tuple(t.shape) for n, t in memory.buffers.items()} == {
        b.name: b.shape for b in manifest.state
    }
    for tensor in memory.buffers.values():
        assert not tensor.any()
        tensor.fill_(1.0)  # its own rows are its own
    memory.check_guards()
    for name, tensor in memory.buffers.items():
        for step in (-1, tensor.numel()):
            beside = torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + step)
            before = beside.clone()
            beside.fill_(7.0)
            with pytest.raises(RequestError, match=name if step < 0 else "zone target") as found:
                memory.check_guards()
            assert found.value.code == "SPECC-E0613"
            beside.copy_(before)
            memory.check_guards()


def test_a_long_context_has_a_plan_for_short_texts(
    tiny_model: Path, shared_folder: Path, tmp_path: Path
) -> None:
    """A text that grows from the one to the other says what one says that began in the other."""
    folder = tmp_path / "long"
    folder.mkdir()
    for file in tiny_model.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 8192
    (folder / "config.json").write_text(json.dumps(config))
    path = compiled(folder, shared_folder / "tiny-long.specc", "ngram", max_model_len=8000)
    with Artifact.load(path) as artifact, artifact.session() as grown, artifact.session() as long:
        arena = artifact.manifest.arena
        assert arena is not None
        assert [p.rows for p in arena.plans] == [7200, 8000]
        small, large = (p.bytes for p in arena.plans)
        grown.configure(max_tokens=20, ignore_eos=True)
        grown.append(PROMPT)
        tokens = list(grown.iterate())
        assert grown.stat("state_bytes") == small
        long.configure(max_tokens=7990, ignore_eos=True, num_speculative_tokens=0)
        long.append(PROMPT)
        assert long.stat("state_bytes") == large
        expected = [long.next() for _ in range(60)]
        assert tokens == expected[:20]
        grown.set("max_tokens", 7500)
        grown.append([])
        assert grown.stat("state_bytes") == large
        assert [grown.next() for _ in range(40)] == expected[20:]
        assert grown.stat("prefill_tokens") == 0  # nothing was computed again
