"""`specc verify`: is the artifact exact?"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specc import flags, output, prompts
from specc.commands.inspect_ import check_files
from specc.engines import open_compiled
from specc.errors import ArtifactError
from specc.flags import Json, Switch
from specc.original import load_original
from specc.progress import SilentProgress, TerminalProgress
from specc.recipe import Recipe
from specc.runtime import Manifest
from specc.verification import Divergence, Limits, Report, Verdict, Verifier


def main(
    artifact: Path,
    /,
    *,
    prompts_file: Annotated[Path | None, Parameter(name="--prompts")] = None,
    max_tokens: int = 64,
    margin: float = 1e-3,
    model: str | None = None,
    eager: Annotated[bool, Parameter(negative="--no-eager")] = True,
    ignore_eos: Switch = False,
    threads: int = 0,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Compare an artifact with plain decoding and with the original model.

    Its files must be those that were compiled. Greedy tokens of every K, of adaptive K and of
    planted drafts must be those of plain decoding; those of plain decoding must be the original
    model's. Exit code 1 on a mismatch. Quantised weights are another model: how many tokens the
    original agrees with is then told, and no fault.

    Example: specc verify smol.specc --prompts prompts.txt

    Args:
        artifact: Directory that `specc compile` made.
        prompts_file: Text file of one prompt a line, or .jsonl of {"prompt": ...} or
            {"token_ids": [...]}. Left out, those that come with specc.
        max_tokens: New tokens to compare for each prompt, 1 or more.
        margin: Logits closer than this are a tie.
        model: The original model; left out, the one the artifact says it was compiled from.
        eager: Compare with the original model too, in eager torch.
        ignore_eos: Go on past the end-of-text token.
        threads: Threads; 0 takes the physical cores this process may use.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout.
    """
    del recipe  # (read before this was called)
    flags.at_least("--max-tokens", max_tokens, 1)
    flags.at_least("--margin", margin, 0)
    flags.threads(threads)
    if model is not None and not eager:
        raise flags.conflict("--model has no meaning with --no-eager", "leave one of them out")
    asked = prompts.from_file(prompts_file) if prompts_file else prompts.built_in()
    manifest = Manifest.read(artifact)
    if problems := check_files(manifest, artifact, hashes=True):
        raise ArtifactError(
            "SPECC-E0505", "the artifact's files are not those that were compiled", where=str(artifact),
            found="; ".join(p.removeprefix("SPECC-E0505 ") for p in problems), cure="copy the artifact again",
        )  # fmt: skip
    progress = SilentProgress() if json else TerminalProgress()
    reference = load_original(manifest, model, progress) if eager else None
    limits = Limits(max_tokens, ignore_eos, margin)
    phase = progress.phase(f"verify {prompts.total(asked)}")
    with open_compiled(artifact, threads) as engine, phase:
        report = Verifier(engine, limits, reference).run(asked)
    if json:
        output.emit(payload(report))
    else:
        print(render(report))
    return output.EXIT_FAILURE if report.count(Verdict.MISMATCH) else output.EXIT_OK


def payload(report: Report) -> dict[str, object]:
    """For JSON. Counts are of prompts."""
    first = report.first_divergence
    return {
        "prompts": len(report.verdicts),
        "tokens": report.tokens,
        "exact": report.count(Verdict.EXACT),
        "ties": report.count(Verdict.TIE),
        "mismatches": report.count(Verdict.MISMATCH),
        "first_divergence": asdict(first) if first else None,
        "divergences": [asdict(d) for d in report.divergences],
        "arms": ["plain", *report.arms, *(["eager"] if report.eager else [])],
        "approximations": report.approximations,
        "agreement_with_original": _agreement(report),
    }


def _agreement(report: Report) -> dict[str, object] | None:
    """Of an artifact that rounds: tokens that are the original model's first choice as well."""
    if not (report.approximations and report.eager):
        return None
    share = report.agreed / report.tokens if report.tokens else 1.0
    return {"tokens": report.tokens, "agreed": report.agreed, "share": share}


def render(report: Report) -> str:
    """For people."""
    arms = ", ".join(report.arms)
    judged = report.eager and not report.approximations
    compared = f"plain, {arms}{', eager' if judged else ''}"
    lines = [
        f"{len(report.verdicts)} prompts, {report.tokens} tokens: "
        + ", ".join(f"{report.count(v)} {v}" for v in Verdict),
        f"compared: {compared}",
    ]
    if not report.eager:
        lines.append("the original model was not asked (--no-eager)")
    if (agreement := _agreement(report)) is not None:
        lines.append(
            f"another model than the original, as it rounds ({', '.join(report.approximations)}): "
            f"{agreement['agreed']} of {report.tokens} tokens ({agreement['share']:.1%}) are its first choice too"
        )
    if (first := report.first_divergence) is not None:
        lines.append(f"first divergence: {_shown(first)}")
        by_arm = Counter((d.arm, d.verdict) for d in report.divergences)
        lines += [f"  {arm}: {count} {verdict}" for (arm, verdict), count in by_arm.items()]
    return "\n".join(lines)


def _shown(found: Divergence) -> str:
    margin = "" if found.margin is None else f", margin {found.margin:.2e}"
    return (
        f"{found.verdict} of {found.arm} at {found.prompt}, new token {found.position}: "
        f"expected {found.expected}, found {found.found}{margin}"
    )
