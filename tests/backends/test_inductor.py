"""Compiled artifacts of real, tiny models: the tokens are transformers' own, for every method and K."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specc.ir.weights import WeightStore
from specc.passes import pipelines
from specc.passes.canonicalise import Canonicalise
from specc.runtime import Artifact
from tests.conftest import artifact_of, by_night, compiled, greedy
from tests.ir.importers.drafters import synthetic_mtp
from tests.passes import knowing_drafters

PROMPT = [7, 21, 40, 7, 21, 99, 150, 7, 21]
NEW = 40
METHODS = ("none", "ngram", "suffix", "draft_model", "layerskip", "eagle:adaptive")


@pytest.fixture(scope="module")
def wanted(tiny_model: Path) -> list[int]:
    return greedy(tiny_model, PROMPT, NEW)


@pytest.fixture(scope="module", params=METHODS)
def artifact(request: pytest.FixtureRequest, tiny_model: Path, shared_folder: Path) -> Path:
    return artifact_of(request.param, tiny_model, shared_folder)


def test_same_tokens_as_transformers(artifact: Path, wanted: list[int]) -> None:
    with Artifact.load(artifact) as engine:
        for k in (*engine.manifest.num_speculative_tokens, -1):
            for depth in engine.manifest.drafter.depths or (-1,):
                found = engine.generate(
                    PROMPT, max_tokens=NEW, num_speculative_tokens=k, draft_depth=depth,
                    ignore_eos=True,
                )  # fmt: skip
                assert list(found.token_ids) == wanted, (k, depth)


def test_sampled_tokens_do_not_depend_on_speculation(artifact: Path) -> None:
    with Artifact.load(artifact) as engine:
        texts = {
            engine.generate(
                PROMPT, max_tokens=NEW, num_speculative_tokens=k, temperature=0.8, seed=3,
                ignore_eos=True,
            ).token_ids
            for k in (*engine.manifest.num_speculative_tokens, -1)
        }  # fmt: skip
        assert len(texts) == 1
        other = engine.generate(PROMPT, max_tokens=NEW, temperature=0.8, seed=4, ignore_eos=True)
        assert other.token_ids not in texts


def test_a_drafter_that_is_the_target_is_always_right(
    tiny_model: Path, shared_folder: Path
) -> None:
    path = shared_folder / "tiny-draft_model.specc"
    compiled(tiny_model, path, "draft_model", drafter=str(tiny_model))
    with Artifact.load(path) as engine:
        for heat in (0.0, 1.0):
            stats = engine.generate(
                PROMPT, max_tokens=NEW, num_speculative_tokens=4, temperature=heat, ignore_eos=True
            ).stats
            assert stats.accepted_tokens == stats.draft_tokens > 0


def test_logits_have_the_same_bits_in_any_block(tiny_artifact: Path) -> None:
    """Decoding and verifying run the same code: rows do not know how many they are."""
    with Artifact.load(tiny_artifact) as engine, engine.session() as wide, engine.session() as one:
        for session in (wide, one):
            session.append(PROMPT[:1])
        at = [1, 2, 3, 4, 5]
        block = wide.run("verify_4", {"tokens": PROMPT[1:6], "positions": at, "rows": at})
        for row in range(5):
            tokens, at = [PROMPT[1 + row]], [1 + row]
            alone = bytes(one.run("verify_0", {"tokens": tokens, "positions": at, "rows": at}))
            assert alone == bytes(block)[row * len(alone) : (row + 1) * len(alone)]


def test_fusing_linears_leaves_every_bit(
    tiny_model: Path, tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model compiled with one product for each matrix."""
    monkeypatch.setattr(pipelines, "FuseLinears", lambda **_: Canonicalise())
    apart = compiled(tiny_model, tmp_path / "apart.specc", "ngram")
    logits, calls = [], []
    for path in (apart, tiny_artifact):
        with Artifact.load(path) as engine, engine.session() as session:
            session.append(PROMPT[:5])
            at = [4, 5, 6, 7, 8]
            inputs = {"tokens": PROMPT[4:9], "positions": at, "rows": at}
            logits.append(bytes(session.run("verify_4", inputs)))
        weights = WeightStore.open(path / "weights.safetensors")
        calls.append(sum("#" in name for name in weights))
    assert logits[0] == logits[1]
    assert calls == [2 + 4 * 7, 2 + 4 * 4]


ALLOWED = re.compile(
    r"(libc|libm|libdl|libpthread|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so|linux-vdso"
)


@pytest.mark.parametrize("name", ["model.so", "lib/libspecc.so"])
def test_libraries_need_the_system_alone(tiny_artifact: Path, name: str) -> None:
    output = subprocess.run(
        ["ldd", str(tiny_artifact / name)], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.strip() for line in output.splitlines()]
    assert needed
    assert [line for line in needed if not ALLOWED.search(line)] == []


def test_small_beside_the_weights(tiny_artifact: Path) -> None:
    code = [tiny_artifact / "model.so", tiny_artifact / "lib/libspecc.so"]
    assert sum(path.stat().st_size for path in code) < 4 << 20


def test_code_does_not_tell_where_it_was_built(tiny_artifact: Path) -> None:
    import torch

    code = [tiny_artifact / "model.so", tiny_artifact / "lib/libspecc.so"]
    places = [
        Path(__file__).parents[2],
        Path(torch.__file__).parents[1],
        tiny_artifact,
        Path.home(),
    ]
    found = [(c.name, p) for c in code for p in places if str(p).encode() + b"/" in c.read_bytes()]
    assert found == []


def test_the_c_program_says_the_same(
    tiny_artifact: Path, wanted: list[int], tmp_path: Path
) -> None:
    """Built against the artifact alone, run in an empty environment: no Python, no libtorch to be found."""
    build = tmp_path / "build"
    source = Path(__file__).parents[2] / "examples/c"
    for command in (
        ["cmake", "-S", str(source), "-B", str(build), f"-DSPECC_ARTIFACT={tiny_artifact}"],
        ["cmake", "--build", str(build)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    program = build / "specc_example"
    ids = ",".join(map(str, PROMPT))
    output = subprocess.run(
        [str(program), str(tiny_artifact), "--ids", ids, str(NEW)],
        capture_output=True, text=True, check=True, env={}, cwd="/",
    ).stdout  # fmt: skip
    found = [int(word) for word in output.split()]
    ends = Artifact.load(tiny_artifact).manifest.model.eos_token_ids
    stop = next((i + 1 for i, token in enumerate(wanted) if token in ends), NEW)
    assert found == wanted[:stop]


def test_code_for_another_cpu_is_built_here_and_refused_where_it_cannot_run(
    tiny_artifact: Path, tmp_path: Path
) -> None:
    """--isa avx512 compiles on any machine; loading checks the CPU before anything is mapped executable."""
    from specc.errors import ArtifactError

    copy = tmp_path / "foreign.specc"
    shutil.copytree(tiny_artifact, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace("x86-64-v3", "x86-64-v9"))
    with pytest.raises(ArtifactError, match="SPECC-E0504"):
        Artifact.load(copy)
    os.sync()


def test_auto_measures_and_says_why(tiny_model: Path, tmp_path: Path) -> None:
    from specc.driver import compile_model
    from specc.progress import SilentProgress
    from specc.request import CompileRequest

    report = compile_model(
        CompileRequest(str(tiny_model), tmp_path / "auto.specc", isa="avx2"), SilentProgress()
    )
    assert report.method in ("none", "ngram", "suffix")
    told = " ".join(report.why)
    assert "ngram ran at" in told
    assert "suffix ran at" in told
    assert (tmp_path / "auto.specc/manifest.json").is_file()
    assert list(tmp_path.iterdir()) == [tmp_path / "auto.specc"]


def test_a_leaf_that_fails_is_a_coded_error(tiny_artifact: Path, tmp_path: Path) -> None:
    """The manifest is made to lie about the vocabulary, so that an id reaches the embedding that it cannot have."""
    from specc.errors import RequestError

    copy = tmp_path / "liar.specc"
    shutil.copytree(tiny_artifact, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["model"]["vocab_size"] = 10**9
    for name, function in manifest["functions"].items():
        if name.startswith("verify_"):
            function["outputs"][0]["shape"][1] = 10**9
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with Artifact.load(copy) as engine:
        for _ in range(2):
            with pytest.raises(RequestError, match="SPECC-E0609"):
                engine.generate([900_000_000, 5], max_tokens=3)


@pytest.mark.parametrize(
    ("method", "quant", "drafters"),
    by_night(
        [
            ("eagle3", "none", "auto"),
            ("eagle3", "int8", "auto"),
            ("medusa", "none", "int8"),
            ("dspark", "int8", "none"),
        ],
        ("eagle3", "int8", "auto"),
        ("medusa", "none", "int8"),
        ("dspark", "int8", "none"),
    ),
)
def test_a_trained_drafter_is_believed_as_far_as_it_knows(
    method: str, quant: str, drafters: str, tmp_path: Path
) -> None:
    """Whatever K was, the engine has extended the drafter: accepted lengths are the scripted ones."""
    wrong = {3, 4, 11, 20, 21, 26, 30}
    knowing_drafters.target().save_pretrained(tmp_path / "model")
    drafter = knowing_drafters.MAKERS[method](tmp_path / "drafter", wrong)
    path = compiled(
        tmp_path / "model",
        tmp_path / f"{method}.specc",
        method,
        drafter=str(drafter),
        prefill_chunk=4,
        quant=quant,
        drafter_quant=drafters,
    )
    text = [9]
    while len(text) < 64:
        text.append(knowing_drafters.NEXT[text[-1]])
    with Artifact.load(path) as engine, engine.session() as session:
        session.configure(ignore_eos=True, max_tokens=100)
        session.append(text[:11])
        ks = [4, 0, 0, 2, 4, 4, 0, 0, 0, 0, 0, 0, 2]
        made = knowing_drafters.play(session, text, wrong, range(11, 48), ks)
        session.set("num_speculative_tokens", 4)
        rest = [session.next() for _ in range(64 - made)]
        assert rest == text[made:], "up to where no block fits"
        assert session.next() is None


@pytest.mark.long
def test_latent_attention_and_experts_draft(tmp_path: Path) -> None:
    """A DeepSeek-V3 with an MTP layer that knows what it says, in its own files."""
    model, prompt = tmp_path / "model", [7, 21, 40, 7, 21, 90, 50, 7, 21, 33, 34]
    synthetic_mtp.knowing(model)
    path = compiled(model, tmp_path / "mtp.specc", "mtp", prefill_chunk=4, max_model_len=64)
    text, place = [*prompt, *greedy(model, prompt, 40)], range(len(prompt), 44)
    with Artifact.load(path) as engine:
        with engine.session() as session:
            session.configure(ignore_eos=True, max_tokens=40)
            session.append(prompt)
            knowing_drafters.play(session, text, (), place, [4, 0, 0, 2, 4])
        plain, drafted = (
            engine.generate(
                prompt, max_tokens=24, num_speculative_tokens=k, temperature=1.0, seed=5, ignore_eos=True
            )
            for k in (0, 4)
        )  # fmt: skip
        assert plain.token_ids == drafted.token_ids
        assert len(set(plain.token_ids)) > 12
        assert drafted.stats.accepted_tokens > 12
