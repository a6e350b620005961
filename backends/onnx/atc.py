"""Runs CANN's atc on one model, and says what went wrong in specc's terms.

atc's own words: ge/docs/zh (ATC guide, error codes) and runtime/src/dfx/error_manager of github.com/hicann.
Nothing here was tried on an NPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.cann import Cann
from specc.errors import BackendError

SUCCESS = "ATC run success"
_NO_DETERMINISM = "Ascend310B"
_CODE = r"(E[A-Z0-9]\d{4})"
_OLD_FORM = re.compile(rf"^{_CODE}: ?(?:\[PID: ?\d+\] [\d:.-]+ )?(.*)")
_NEW_FORM = re.compile(rf"^(?:\[PID: ?\d+\] \S+ )?([^()]*)\({_CODE}\): ?(.*)")
_CURES: Mapping[str, str] = {
    "E16002": "update CANN: this release's ONNX parser lacks the operator",
    "E19010": "update CANN: this release's ONNX parser lacks the operator",
    "E16005": "choose another --opset: CANN 8.0 reads 11 to 15",
    "E10001": "check --device ascend:SOC against `npu-smi info`, and that the ops package of that chip is installed",
    "E10501": "source CANN's set_env.sh, and install the ops package of the chip beside the toolkit",
    "E10055": "update CANN: this atc lacks an option that specc gives",
    "E13010": "install the ops package of the chip beside the toolkit",
    "E20001": "report it: CANN cannot compile this operator for the chip",
    "E10041": "copy the artifact again: atc cannot read the model or a file of weights beside it",
    "E10410": "copy the artifact again: atc does not find a file",
    "E16001": "copy the artifact again: the model has no inputs",
    "E10056": "report it: specc gives atc options that exclude each other in this release",
    "E13023": "choose a smaller --max-model-len: the compiled model is too large",
}
_MEMORY = (
    "free memory, or set TE_PARALLEL_COMPILER=1: atc was killed, most likely for want of memory"
)


@dataclass(frozen=True)
class Job:
    """A model to compile, relative to the folder that atc runs in."""

    name: str
    model: str
    inputs: Mapping[str, Sequence[int]]
    nodes: tuple[str, ...] = ()
    """Names of the model's operators, to recognise in what atc says."""


def arguments(job: Job, soc: str, output: str) -> list[str]:
    """What atc is given. Static shapes; the types are those of the model; weights by hash, shared by all models."""
    shapes = ";".join(f"{name}:{','.join(map(str, dims))}" for name, dims in job.inputs.items())
    chosen = [
        "--mode=0", "--framework=5", f"--model={job.model}", f"--output={output}/{job.name}",
        f"--soc_version={soc}", "--input_format=ND", f"--input_shape={shapes}",
        "--precision_mode_v2=origin", "--external_weight=1", "--log=error",
    ]  # fmt: skip
    return chosen if soc.startswith(_NO_DETERMINISM) else [*chosen, "--deterministic=1"]


def compile_model(cann: Cann, job: Job, soc: str, folder: Path, output: str, timeout: float) -> str:
    """Compile one model in `folder`; the path of its OM, relative to it.

    Raises BackendError: SPECC-E0431 where atc says that it failed, with its code; E0432 after `timeout` seconds; E0433
    for a success without a file; E0434 for an atc that cannot run.
    """
    (folder / output).mkdir(parents=True, exist_ok=True)
    began = time.time() - 2  # file systems round
    code, told = _run([str(cann.atc), *arguments(job, soc, output)], job, folder, timeout)
    if code != 0 or SUCCESS not in told:
        raise failure(job, code, told)
    # Its name gets the host's system where the model has code for that.
    made = [
        p for p in sorted((folder / output).glob(f"{job.name}*.om"))
        if p.stat().st_mtime >= began and re.fullmatch(r"(_\w+)?\.om", p.name.removeprefix(job.name))
    ]  # fmt: skip
    if not made:
        raise BackendError(
            "SPECC-E0433", f"atc says that it compiled {job.name}, and there is no OM", where=str(folder / output),
            found=_last_line(told), cure="check the disk's free space, and run build_om.sh by hand",
        )  # fmt: skip
    return f"{output}/{made[-1].name}"


def failure(job: Job, code: int, told: str) -> BackendError:
    """What atc said, as an error with atc's code and, where it names one, our operator."""
    found = list(parse(told))
    # E19999 is "internal error", which wraps what is nearer to the cause.
    atc_code, message = next(
        (f for f in found if f[0] != "E19999"), found[0] if found else ("", _last_line(told))
    )
    node = next((n for n in sorted(job.nodes, key=len, reverse=True) if n in told), "")
    cure = _CURES.get(atc_code, "see the logs in ~/ascend/log, and run build_om.sh by hand")
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        cure = _MEMORY
    return BackendError(
        "SPECC-E0431", f"atc cannot compile {job.name}" + (f": {atc_code}" if atc_code else ""),
        where=f"{job.model}{f', {node}' if node else ''}",
        found=(message or f"exit code {code}")[:400], cure=cure,
    )  # fmt: skip


def parse(told: str) -> list[tuple[str, str]]:
    """(code, message) of each error in atc's output, in the form of CANN 8 (code first) or of later ones."""
    found = []
    for line in told.splitlines():
        if old := _OLD_FORM.match(line):
            found.append((old[1], old[2].strip()))
        elif new := _NEW_FORM.match(line):
            found.append((new[2], new[3].strip() or new[1].strip()))
    return found


def _run(command: list[str], job: Job, folder: Path, timeout: float) -> tuple[int, str]:
    """Exit code and everything that atc printed; it runs in a group of its own, which ends with it."""
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise BackendError(
            "SPECC-E0434", "atc cannot be run", where=command[0], found=error.strerror or str(error),
            cure="source CANN's set_env.sh, and see `specc doctor`",
        ) from error  # fmt: skip
    with process:
        try:
            told, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                "SPECC-E0432", f"atc did not finish {job.name} in {timeout:.0f} s", where=job.model,
                cure="set SPECC_ATC_TIMEOUT to more seconds; models that are done are kept",
            ) from error  # fmt: skip
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, told


def _last_line(told: str) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
