"""`specc bench`: an artifact against its own plain decoding, losses included."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specc import flags, output, prompts
from specc.engines import open_compiled
from specc.flags import Json
from specc.measurement import (
    MOST_DRAFT_COST,
    PLAIN,
    Measurements,
    RoundCost,
    Speed,
    arms_of,
    draft_cost,
    measure,
    verify_seconds,
)
from specc.original import load_original
from specc.progress import SilentProgress, TerminalProgress, human_bytes
from specc.prompts import Prompt
from specc.recipe import Recipe
from specc.report import page
from specc.runtime import ADAPTIVE, Artifact, Manifest

ADAPTIVE_ARM = "adaptive"
MAX_TOKENS, REPEATS = 128, 5


def main(
    artifact: Path,
    /,
    *,
    prompts_file: Annotated[Path | None, Parameter(name="--prompts")] = None,
    max_tokens: int = MAX_TOKENS,
    repeats: int = REPEATS,
    synthetic_acceptance: str | None = None,
    length_policy: str | None = None,
    quality: Path | None = None,
    model: str | None = None,
    threads: int = 0,
    report: Path | None = None,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Measure an artifact against its own plain decoding.

    Plain, each K and adaptive K take turns on the same prompts, greedily, past the end of text.
    Medians over repeats. With --quality, measure instead what quantised weights cost on a text.

    Example: specc bench smol.specc --max-tokens 64

    Args:
        artifact: Directory that `specc compile` made.
        prompts_file: Text file of one prompt a line, or .jsonl. Left out: chat, code and copying.
        max_tokens: New tokens for each prompt, 2 or more.
        repeats: How often, 1 or more.
        synthetic_acceptance: Play a drafter of this acceptance by position, as in 0.8,0.6. NOT
            SEMANTIC: it knows the plain tokens, and tells what such a drafter would be worth here.
        length_policy: Other rules than adaptive for choosing K, to be measured beside it, as in
            prompt-length,aimd.
        quality: UTF-8 text on which perplexity is compared with the original model's, in float32.
        model: The original model, for --quality; left out, the one the artifact says.
        threads: Threads; 0 takes the physical cores this process may use.
        report: HTML file to write, one page with plots.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout.
    """
    del recipe  # (read before this was called)
    flags.at_least("--max-tokens", max_tokens, 2)
    flags.at_least("--repeats", repeats, 1)
    flags.threads(threads)
    if model is not None and quality is None:
        raise flags.conflict("--model has no meaning without --quality", "leave it out")
    if quality is not None:
        flags.without_effect("beside --quality", {
            "--report": report is not None, "--prompts": prompts_file is not None,
            "--synthetic-acceptance": synthetic_acceptance is not None, "--length-policy": length_policy is not None,
            "--max-tokens": max_tokens != MAX_TOKENS, "--repeats": repeats != REPEATS,
        })  # fmt: skip
        return _quality(artifact, quality, model, threads, json=json)
    rates: tuple[float, ...] = ()
    if synthetic_acceptance is not None:
        rates = flags.probabilities("--synthetic-acceptance", synthetic_acceptance)
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise flags.bad_value("--report", "a file in a folder that exists", report)
    asked = prompts.from_file(prompts_file) if prompts_file else prompts.built_in()
    progress = SilentProgress() if json else TerminalProgress()
    with open_compiled(artifact, threads) as engine:
        manifest = engine.manifest
        if rates and not (manifest.drafter.host and manifest.speculates):
            raise flags.conflict(
                "--synthetic-acceptance needs an artifact whose drafter can be replaced",
                "compile with --method ngram", found=f"method {manifest.method}",
            )  # fmt: skip
        policies = _policies(manifest, length_policy)
        with progress.phase(f"measure {prompts.total(asked)}, {repeats} times"):
            found = measure(engine, asked, max_tokens, repeats, synthetic=rates, policies=policies)
        phases = _phases(engine, found, asked)
    if report is not None:
        text = page(manifest, found, phases, verdict(manifest, found), semantic=not rates)
        report.write_text(text, "utf-8")
    if json:
        output.emit(payload(manifest, found, phases, rates))
    else:
        print(render(manifest, found, phases, rates))
    return output.EXIT_OK


def _policies(manifest: Manifest, asked: str | None) -> list[str]:
    names = list(dict.fromkeys(asked.split(","))) if asked is not None else []
    return [name for name in names if flags.length_policy(manifest, name, ADAPTIVE)]


def _quality(artifact: Path, text: Path, model: str | None, threads: int, *, json: bool) -> int:
    from specc.quality import measure_quality, payload, render

    progress = SilentProgress() if json else TerminalProgress()
    words = prompts.read_text(text, "--quality")
    with open_compiled(artifact, threads) as engine:
        ids = prompts.encode(engine, words)
        if len(ids) < 2:
            raise flags.bad_value("--quality", "a text of 2 tokens or more", f"{len(ids)}")
        eager = load_original(engine.manifest, model, progress)
        with progress.phase(f"read {len(ids)} tokens with both models"):
            found = measure_quality(engine, eager, ids)
    if json:
        output.emit(payload(found, engine.manifest))
    else:
        print(render(found, engine.manifest))
    return output.EXIT_OK


def payload(
    manifest: Manifest, found: Measurements, phases: dict[str, float], rates: tuple[float, ...]
) -> dict[str, object]:
    """For JSON. `speculative` is what a user gets without choosing: adaptive K."""
    arms = [a.name for a in arms_of(manifest, found.policies)]
    cost = draft_cost(manifest, phases)
    kinds = dict.fromkeys(r.kind for r in found.runs)
    return {
        "method": manifest.method,
        "semantic": not rates,
        "speculation": flags.speculation(manifest, -1),
        "plain": _speed_json(found.speed(PLAIN.name)),
        "speculative": {"arm": ADAPTIVE_ARM, **_arm_json(found, ADAPTIVE_ARM)},
        "arms": {name: _arm_json(found, name) for name in arms},
        "kinds": {
            kind: {
                "plain": _speed_json(found.speed(PLAIN.name, kind)),
                "speculative": _speed_json(found.speed(ADAPTIVE_ARM, kind)),
            }
            for kind in kinds
        },
        "phases": phases,
        "state_bytes": manifest.state_bytes,
        "draft_cost": None
        if cost is None
        else {**asdict(cost), "limit": MOST_DRAFT_COST, "within": cost.within},
        "break_even": [
            {**asdict(c), "pays": c.pays}
            for c in found.round_costs(manifest.num_speculative_tokens)
        ],
        "verdict": verdict(manifest, found),
    }


def verdict(manifest: Manifest, found: Measurements) -> str:
    """Said plainly, above all when speculation loses."""
    if not manifest.speculates:
        return "nothing is drafted: this is plain decoding"
    arms = [a.name for a in arms_of(manifest, found.policies)[1:]]
    best = max(arms, key=lambda name: found.speed(name).ratio)
    speed = found.speed(best)
    adaptive = found.speed(ADAPTIVE_ARM)
    if speed.ratio <= 1:
        return (
            f"plain is faster here (the best arm, {best}, runs at {speed.ratio:.2f} of it); "
            "use --method none or --num-speculative-tokens 0"
        )
    if speed.ratio_least <= 1:
        return f"no clear gain: {best} is at {speed.ratio:.2f} of plain, within the spread"
    text = f"{best} is {speed.ratio:.2f} times plain"
    if best != ADAPTIVE_ARM:
        text += f"; adaptive K, the default, {adaptive.ratio:.2f}"
    return text


def render(
    manifest: Manifest, found: Measurements, phases: dict[str, float], rates: tuple[float, ...]
) -> str:
    """For people."""
    lines = [f"speculation: {flags.speculation(manifest, -1)}"]
    if rates:
        lines.append("NOT SEMANTIC: the drafter knew the plain tokens (--synthetic-acceptance)")
    repeats = found.speed(PLAIN.name).repeats
    lines += ["", f"  {'one repeat' if repeats == 1 else f'medians of {repeats} repeats'}"]
    rows = [("", "tokens/s", "spread", "of plain", "acceptance length")]
    for arm in arms_of(manifest, found.policies):
        speed = found.speed(arm.name)
        length = f"{found.mean_acceptance_length(arm.name):.2f}" if arm is not PLAIN else ""
        rows.append((arm.name, *_speed_row(speed), length))
    lines += [output.table(rows)]
    kinds = list(dict.fromkeys(r.kind for r in found.runs))
    if len(kinds) > 1:
        rows = [("adaptive, by kind", "tokens/s", "spread", "of plain", "")]
        rows += [(k, *_speed_row(found.speed(ADAPTIVE_ARM, k)), "") for k in kinds]
        lines += ["", output.table(rows)]
    widest = f"K={manifest.num_speculative_tokens[-1]}"
    if positions := found.acceptance(widest):
        lines += ["", f"  acceptance by position, {widest}"]
        for place, (drafted, accepted) in enumerate(positions, 1):
            share = accepted / drafted
            lines.append(f"  {place:>4}  {output.bar(share):<20} {share:4.0%} of {drafted}")
    if costs := found.round_costs(manifest.num_speculative_tokens):
        lines += [
            "",
            "  break-even: what a round of K drafts costs, in plain rounds; it pays if it gives",
        ]
        lines += ["  more tokens than that, and would from this acceptance of each draft on"]
        lines += [output.table([_COST_TITLES, *map(_cost_row, costs)])]
    made: list[tuple[str, ...]] = [("a round makes", "calls", "host syncs", "thread syncs")]
    for arm in arms_of(manifest)[:-1]:
        made.append((arm.name, *(f"{n:.1f}" for n in found.calls(arm.name).values())))
    lines += ["", output.table(made)]
    total = sum(phases.values()) or 1.0
    shares = ", ".join(f"{n.removesuffix('_s')} {v / total:.0%}" for n, v in phases.items())
    lines += ["", f"  time, {widest if manifest.speculates else PLAIN.name}: {shares}"]
    split = "" if manifest.arena is None else f", split {manifest.arena.split}"
    lines += [f"  state of a text: {human_bytes(manifest.text_bytes)} in one allocation{split}"]
    cost = draft_cost(manifest, phases)
    if cost is not None and not cost.within:
        lines += [
            f"  drafting K={cost.k} takes {cost.share:.2f} of the time of verifying; more than {MOST_DRAFT_COST:.2f}",
            "  seldom pays: a smaller drafter or draft vocabulary, or a smaller K, may be faster",
        ]
    lines += ["", verdict(manifest, found)]
    return "\n".join(lines)


def _phases(engine: Artifact, found: Measurements, asked: list[Prompt]) -> dict[str, float]:
    """Seconds of the widest K: drafting, verifying (and accepting), the rest.

    A drafter inside the round has no clock of its own: its time is what the round takes beyond
    scoring alone.
    """
    k = engine.manifest.num_speculative_tokens[-1]
    arm = f"K={k}" if k else PLAIN.name
    spent = found.seconds(arm)
    draft, rounds = spent["draft_s"], spent["round_s"]
    verify = rounds
    if k and not engine.manifest.drafter.host:
        by_k = [n for r in found.of(arm) for n in r.stats.per_k if n.k == k]
        seconds, count = sum(n.seconds for n in by_k), sum(n.rounds for n in by_k)
        ids = asked[0].ids(engine)[: engine.manifest.model.max_model_len - k - 1]
        scoring = min(seconds, count * verify_seconds(engine, ids, k))
        draft += seconds - scoring
        verify -= seconds - scoring
    return {"draft_s": draft, "verify_s": verify, "other_s": spent["other_s"]}


_COST_TITLES = (
    "K", "ms a round", "cost", "tokens a round", "acceptance needed", "",
)  # fmt: skip


def _cost_row(cost: RoundCost) -> tuple[str, ...]:
    share = cost.acceptance_needed
    needed = "over 100%" if share is None else output.percent(share)
    return (
        str(cost.k), f"{cost.round_s * 1e3:.1f}", f"{cost.cost:.2f}",
        f"{cost.tokens_per_round:.2f}", needed, "pays" if cost.pays else "loses",
    )  # fmt: skip


def _speed_row(speed: Speed) -> tuple[str, str, str]:
    return f"{speed.tokens_per_s:.1f}", output.percent(speed.spread), f"{speed.ratio:.2f}"


def _speed_json(speed: Speed) -> dict[str, object]:
    return {
        "tokens_per_s": speed.tokens_per_s,
        "spread": speed.spread,
        "tokens_per_s_range": [speed.least, speed.most],
        "ratio": speed.ratio,
        "ratio_range": [speed.ratio_least, speed.ratio_most],
    }


def _arm_json(found: Measurements, arm: str) -> dict[str, object]:
    positions = found.acceptance(arm)
    return {
        **_speed_json(found.speed(arm)),
        "mean_acceptance_length": found.mean_acceptance_length(arm),
        "acceptance_by_position": [accepted / drafted for drafted, accepted in positions],
        **found.seconds(arm),
        "per_round": found.calls(arm),
    }
