"""Python over the C ABI: errors, and sessions of a real artifact."""

import contextlib
import ctypes
import gc
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from specc.errors import ArtifactError, RequestError
from specc.runtime import ADAPTIVE, Artifact, native
from specc.runtime.session import AT_ONCE, Session
from specc.runtime.stats import LengthStats, PositionStats, Stats
from tests.conftest import artifact_of
from tests.runtime.manifests import document

PROMPT = [5, 6, 7, 5, 6, 7, 5]


def allows(artifact: Artifact, option: str, value: int | float, can: bool) -> None:
    """A session takes the option where it `can`, and else refuses it."""
    expected = contextlib.nullcontext() if can else pytest.raises(RequestError, match="SPECC-E0601")
    with artifact.session() as session, expected:
        session.configure(**{option: value})


@pytest.mark.parametrize("method", ["ngram", "eagle:adaptive", "batch"])
def test_the_engine_refuses_what_the_manifest_does_not_list(
    method: str, tiny_model: Path, tiny_batch: Path, shared_folder: Path
) -> None:
    path = tiny_batch if method == "batch" else artifact_of(method, tiny_model, shared_folder)
    with Artifact.load(path) as artifact:
        can = set(artifact.manifest.capabilities)
        assert can == {
            "choices",
            *{"eagle:adaptive": ["draft_depth"], "batch": ["batch"]}.get(method, []),
        }
        assert artifact.manifest.raw["capabilities"] == list(artifact.manifest.capabilities)
        allows(artifact, "logprobs", 1, "choices" in can)
        allows(artifact, "confidence_threshold", 0.5, "confidence_threshold" in can)
        depth = min(artifact.manifest.drafter.depths or (2,))
        allows(artifact, "draft_depth", depth, "draft_depth" in can)
        expected = contextlib.nullcontext() if "batch" in can else pytest.raises(RequestError)
        with expected:
            artifact.batch().close()


def test_what_is_no_artifact(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", Path(__file__)):
        with pytest.raises(ArtifactError, match="SPECC-E0501"):
            Artifact.load(path)


def test_other_hardware_is_refused_before_any_library_is_mapped(tmp_path: Path) -> None:
    doc = document()
    doc["device"]["arch"] = "s390x"
    (tmp_path / "manifest.json").write_text(json.dumps(doc))
    with pytest.raises(ArtifactError, match="SPECC-E0504"):
        Artifact.load(tmp_path)


def test_library_that_is_not_the_manifests(tmp_path: Path) -> None:
    doc = document()
    (tmp_path / "manifest.json").write_text(json.dumps(doc))
    with pytest.raises(ArtifactError, match="SPECC-E0502"):
        Artifact.load(tmp_path)
    doc["files"]["lib/libspecc.so"] = {"sha256": "00", "bytes": 3}
    (tmp_path / "manifest.json").write_text(json.dumps(doc))
    with pytest.raises(ArtifactError, match="SPECC-E0505"):
        Artifact.load(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libspecc.so").write_bytes(b"not")
    with pytest.raises(ArtifactError, match="SPECC-E0505"):
        Artifact.load(tmp_path)


def test_a_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "libspecc.so").write_bytes(b"\x7fELF")
    with pytest.raises(ArtifactError, match="SPECC-E0506"):
        native.load_library(tmp_path / "libspecc.so")


def test_errors_are_read_from_text() -> None:
    text = "SPECC-E0503 too new\n  where: a: b\n  expected: 1\n  found: 2\n  cure: update specc"
    error = native.error_from(text, native.ARTIFACT)
    assert isinstance(error, ArtifactError)
    assert error.as_json() == {
        "code": "SPECC-E0503", "what": "too new", "where": "a: b", "expected": "1", "found": "2",
        "cure": "update specc",
    }  # fmt: skip
    assert error.render() == text


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("SPECC-E0601 no such option", RequestError, "SPECC-E0601"),
        ("SPECC-E0608 out of memory", RequestError, "SPECC-E0608"),
        ("", RequestError, "SPECC-E0600"),
        ("nonsense\n  cure: x", RequestError, "SPECC-E0600"),
    ],
)
def test_errors_of_every_shape(text: str, kind: type[Exception], code: str) -> None:
    error = native.error_from(text, native.INVALID)
    assert type(error) is kind
    assert error.code == code


def test_details_may_have_several_lines() -> None:
    error = native.error_from("SPECC-E0604 NaN\n  found: one\ntwo\n  cure: three")
    assert (error.found, error.cure) == ("one\ntwo", "three")


def stats(**changes: Any) -> Stats:
    values: dict[str, Any] = dict.fromkeys(
        ("rounds", "drafts", "draft_tokens", "accepted_tokens", "new_tokens", "prefill_tokens",
         "k_current", "depth_current"), 0
    )  # fmt: skip
    values |= dict.fromkeys(("prefill_s", "decode_s", "draft_s", "round_s", "acceptance_ewma"), 0.0)
    return Stats(**{**values, "by_position": (), "per_k": (), **changes})


def test_stats_state_their_denominators() -> None:
    counted = stats(
        drafts=4, draft_tokens=8, accepted_tokens=6, new_tokens=11, decode_s=2.0,
        by_position=(PositionStats(4, 4), PositionStats(4, 2), PositionStats(0, 0)),
        per_k=(LengthStats(0, 0, 0.0, 0), LengthStats(2, 4, 1.0, 10)),
    )  # fmt: skip
    assert counted.mean_acceptance_length == 2.5
    assert counted.tokens_per_s == 5.5
    assert counted.acceptance_by_position == [1.0, 0.5]
    assert counted.per_k[1].round_s == 0.25
    assert counted.per_k[0].round_s is None


def test_stats_of_nothing() -> None:
    nothing = stats()
    assert nothing.tokens_per_s == 0
    assert nothing.mean_acceptance_length == 1
    assert nothing.acceptance_rate is None
    json.dumps(nothing.as_json(), allow_nan=False)


def test_the_runtime_needs_neither_torch_nor_the_compiler() -> None:
    code = (
        "import sys, specc.runtime\n"
        "heavy = {'torch', 'numpy', 'specc.ir', 'specc.passes', 'specc.backends'}\n"
        "bad = heavy & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# With a real artifact.


def test_generates_the_same_with_every_k(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact:
        ks = artifact.manifest.num_speculative_tokens
        texts = {
            artifact.generate(PROMPT, max_tokens=24, num_speculative_tokens=k).token_ids
            for k in (*ks, ADAPTIVE)
        }
        assert len(texts) == 1


def test_sampling_depends_on_the_seed_alone(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact:

        def text(seed: int, k: int) -> tuple[int, ...]:
            return artifact.generate(
                PROMPT, max_tokens=16, temperature=1.0, seed=seed, num_speculative_tokens=k
            ).token_ids

        assert text(1, 0) == text(1, 4) == text(1, ADAPTIVE)
        assert len({text(seed, 0) for seed in range(5)}) > 1


@pytest.mark.parametrize("cap", [0, 1, 2, 3, 4, 5, 9, 11])
def test_max_tokens_is_exact(tiny_artifact: Path, cap: int) -> None:
    with Artifact.load(tiny_artifact) as artifact:
        result = artifact.generate(
            PROMPT, max_tokens=cap, ignore_eos=True, num_speculative_tokens=4
        )
    assert (len(result.token_ids), result.finish_reason) == (cap, "length")
    assert result.stats.new_tokens == cap


def test_a_full_context_ends_generation(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact:
        room = artifact.manifest.model.max_model_len
        prompt = [3 + i % 5 for i in range(room - 3)]
        result = artifact.generate(prompt, max_tokens=50, ignore_eos=True)
        assert (len(result.token_ids), result.finish_reason) == (3, "context")
        with pytest.raises(RequestError, match="SPECC-E0603"):
            artifact.generate([3] * (room + 1))


def test_stop_tokens_are_not_returned(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact:
        whole = artifact.generate(PROMPT, max_tokens=12, ignore_eos=True).token_ids
        stop = whole[6]
        cut = artifact.generate(PROMPT, max_tokens=12, ignore_eos=True, stop_token_ids=[stop])
    assert cut.token_ids == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_many_rounds_in_one_call_say_what_each_says(tiny_artifact: Path) -> None:
    """More tokens than come back at once, of which a second text goes on; and a cancelled call keeps what it has."""
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        for k in (0, 4):
            session.configure(max_tokens=AT_ONCE + 9, ignore_eos=True, num_speculative_tokens=k)
            session.append(PROMPT)
            singly = list(session.iterate())
            session.rewind(len(PROMPT))
            session.append([])
            assert session.next() == singly[0]
            assert session.generate() == singly[1:]
            assert session.tokens == (*PROMPT, *singly)
            assert session.finish_reason == "length"
            session.rewind(len(PROMPT))
            session.append([])
            session.cancel()
            assert session.generate() == []
            assert session.finish_reason == "cancelled"
            assert session.generate() == singly
            session.rewind(0)


def test_a_second_turn_equals_a_fresh_run(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=5, ignore_eos=True, num_speculative_tokens=4)
        session.append(PROMPT)
        first = list(session.iterate())
        session.append([9, 9])
        second = list(session.iterate())
        assert session.tokens == (*PROMPT, *first, 9, 9, *second)
        joined = [*PROMPT, *first, 9, 9]
        assert list(artifact.generate(joined, max_tokens=5, ignore_eos=True).token_ids) == second


def test_rewind_and_append_equal_a_fresh_run(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=6, ignore_eos=True)
        session.append(PROMPT)
        list(session.iterate())
        session.rewind(4)
        assert session.tokens == tuple(PROMPT[:4])
        session.append([8])
        again = list(session.iterate())
        fresh = artifact.generate([*PROMPT[:4], 8], max_tokens=6, ignore_eos=True)
        assert again == list(fresh.token_ids)
        with pytest.raises(RequestError, match="SPECC-E0601"):
            session.rewind(1000)


def test_cancel_from_another_thread_leaves_a_usable_session(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=100, ignore_eos=True)
        session.append(PROMPT)
        first = session.next()
        thread = threading.Thread(target=session.cancel)
        thread.start()
        thread.join()
        assert session.next() is None
        assert session.finish_reason == "cancelled"
        session.configure(max_tokens=4)
        assert session.append([9])
        again = list(session.iterate())
        assert len(again) == 4
        assert session.finish_reason == "length"
        assert first is not None
        fresh = artifact.generate([*PROMPT, first, 9], max_tokens=4, ignore_eos=True)
        assert again == list(fresh.token_ids)


def test_an_oracle_drafter_is_always_accepted(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        plain = artifact.generate(
            PROMPT, max_tokens=21, ignore_eos=True, num_speculative_tokens=0
        ).token_ids
        told = [*PROMPT, *plain]
        session.configure(max_tokens=20, ignore_eos=True, num_speculative_tokens=4)
        session.set_drafter(lambda committed, k: told[len(committed) : len(committed) + k])
        session.append(PROMPT)
        assert tuple(session.iterate()) == plain[:20]
        counted = session.stats
        assert counted.accepted_tokens == counted.draft_tokens > 0
        assert set(counted.acceptance_by_position) == {1.0}
        assert counted.mean_acceptance_length > 3
        assert sum(n.tokens for n in counted.per_k) == 20
        session.set_drafter(None)
        session.append([9])
        assert len(list(session.iterate())) == 20


def test_what_was_given_back_leaves_rounds_to_the_engine(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then `generate` asks for many tokens at once again, not for each."""
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=6, ignore_eos=True)
        session.set_drafter(lambda committed, k: [])
        session.set_mask(lambda new, drafts, rows: len(rows))
        session.append(PROMPT)
        session.set_drafter(None)
        session.set_mask(None)
        monkeypatch.setattr(Session, "next", lambda self: pytest.fail("asked for one token"))
        assert len(session.generate()) == 6


def test_what_a_drafter_raises_reaches_the_caller(tiny_artifact: Path) -> None:
    def broken(committed: list[int], k: int) -> list[int]:
        raise ZeroDivisionError(f"{len(committed)} {k}")

    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.set_drafter(broken)
        session.set("num_speculative_tokens", 2)
        session.append(PROMPT)
        with pytest.raises(ZeroDivisionError):
            session.next()
        # The round went on without drafts; what it committed is not lost.
        session.set_drafter(None)
        session.configure(max_tokens=6, ignore_eos=True)
        list(session.iterate())
        fresh = artifact.generate(PROMPT, max_tokens=6, ignore_eos=True)
        assert session.tokens == (*PROMPT, *fresh.token_ids)


@pytest.mark.parametrize("bad", [[-1], [10**6], [0, 0, 0, 0, 0, 0, 0, 0, 0]])
def test_a_drafter_that_misbehaves(tiny_artifact: Path, bad: list[int]) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.set_drafter(lambda committed, k: bad)
        session.set("num_speculative_tokens", 2)
        session.append(PROMPT)
        with pytest.raises(RequestError, match="SPECC-E0606"):
            session.next()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nonsense", 1), ("max_tokens", -1), ("num_speculative_tokens", 3), ("temperature", -0.5),
        ("temperature", float("nan")), ("max_tokens", 1.5), ("seed", 1 << 70), ("ignore_eos", 2),
        ("draft_depth", 3), ("max_tokens", float("nan")), ("max_tokens", float("inf")), ("temperature", 10**400),
    ],
)  # fmt: skip
def test_options_are_checked(tiny_artifact: Path, name: str, value: float) -> None:
    opened = Artifact.load(tiny_artifact)
    refused = pytest.raises(RequestError, match="SPECC-E0601")
    with opened as artifact, artifact.session() as session, refused:
        session.set(name, value)


def test_prompts_are_checked(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        for ids, code in (([], "E0607"), ([-1], "E0602"), ([10**9], "E0602"), (["a"], "E0602"),
                          ([1 << 64], "E0602"), ([1.0], "E0602"), (["1"], "E0602")):  # fmt: skip
            with pytest.raises(RequestError, match=code):
                session.append(ids)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="E0607"):
            session.next()


def test_run_gives_shaped_logits(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.append(PROMPT)
        last = len(PROMPT) - 1
        at = [last, last + 1, last + 2]
        inputs = {"tokens": [PROMPT[-1], 1, 2], "positions": at, "rows": at}
        logits = session.run("verify_2", inputs)
        assert logits.shape[0] == 3
        assert logits.shape[1] >= artifact.manifest.model.vocab_size
        row = logits.tolist()[0]
        first = artifact.generate(PROMPT, max_tokens=1, ignore_eos=True).token_ids
        valid = row[: artifact.manifest.model.vocab_size]
        assert (valid.index(max(valid)),) == first
        with pytest.raises(RequestError, match="E0601"):
            session.run("verify_3", {})
        with pytest.raises(RequestError, match="E0601"):
            session.run("verify_2", {"tokens": [1, 2, 3]})
        with pytest.raises(RequestError, match="E0601"):
            session.run("verify_2", {"tokens": [1], "positions": [0], "rows": [0]})


def test_a_tool_cannot_spoil_the_text(tiny_artifact: Path) -> None:
    with Artifact.load(tiny_artifact) as artifact, artifact.session() as session:
        session.configure(max_tokens=8, ignore_eos=True)
        session.append(PROMPT)
        at = [0, 1, 2]
        session.run("verify_2", {"tokens": [9, 9, 9], "positions": at, "rows": at})
        fresh = artifact.generate(PROMPT, max_tokens=8, ignore_eos=True)
        assert tuple(session.iterate()) == fresh.token_ids


def test_closing_is_final_and_harmless(tiny_artifact: Path) -> None:
    artifact = Artifact.load(tiny_artifact)
    session = artifact.session()
    session.append(PROMPT)
    artifact.close()
    artifact.close()
    assert session.next() is not None  # what a session needs lives on with it
    session.close()
    session.close()
    with pytest.raises(RequestError, match="E0607"):
        session.next()
    with pytest.raises(RequestError, match="E0607"):
        artifact.session()


def test_what_is_dropped_is_freed(tiny_artifact: Path) -> None:
    artifact = Artifact.load(tiny_artifact)
    session = artifact.session()
    ends = (session._free, artifact._free)
    del session, artifact
    gc.collect()
    assert not any(end.alive for end in ends)


def test_files_that_are_damaged(tiny_artifact: Path, tmp_path: Path) -> None:
    for name in ("model.so", "weights.safetensors", "lib/libspecc.so"):
        copy_of = tmp_path / name.replace("/", "_")
        shutil.copytree(tiny_artifact, copy_of)
        with (copy_of / name).open("r+b") as file:
            file.truncate(100)
        with pytest.raises(ArtifactError, match="SPECC-E0505"):
            Artifact.load(copy_of)


def test_what_replaces_an_artifact_is_loaded_anew(tiny_artifact: Path, tmp_path: Path) -> None:
    place = tmp_path / "artifact"
    shutil.copytree(tiny_artifact, place)
    old = Artifact.load(place, threads=1)
    same = Artifact.load(place, threads=2)
    assert (old.threads, same.threads) == (1, 1)  # one library, one set of threads
    place.rename(tmp_path / "gone")
    shutil.copytree(tiny_artifact, place)
    new = Artifact.load(place, threads=2)
    assert new.threads == 2  # the old library would have had one
    assert new._library is not old._library
    texts = {a.generate(PROMPT, max_tokens=8, ignore_eos=True).token_ids for a in (old, new, same)}
    assert len(texts) == 1


def test_interface_version_is_checked_first(tiny_artifact: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "INTERFACE_VERSION", 99)
    with pytest.raises(ArtifactError, match="SPECC-E0503"):
        native.load_library(tiny_artifact / "lib/libspecc.so")


def test_every_name_of_the_header_is_bound() -> None:
    header = Path(native.__file__).parent / "include/specc.h"
    names = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in header.read_text().splitlines()
        if line.startswith("SPECC_API")
    }
    # (Artifacts are folders to Python; what is for apps without files is played in test_sources.py.)
    elsewhere = {"specc_interface_version", "specc_artifact_load_from"}
    assert names - elsewhere == set(native.PROTOTYPES)
    assert ctypes.sizeof(native.Ids) == ctypes.sizeof(ctypes.c_void_p)
