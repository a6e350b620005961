"""What CANN makes of an artifact's models: one OM for each, where it is installed, else a script that does it later."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from specc import cache
from specc.backends.base import Progress
from specc.backends.onnx.atc import Job, arguments, compile_model
from specc.cann import Cann
from specc.errors import BackendError

OUTPUT = "om"
CHIP = "soc"
"""Beside the OMs: which chip they are for."""

SCRIPT = "build_om.sh"
_HOURS = 3600.0
_OVERHEAD = 4 << 30
"""Bytes that an atc takes beside the weights, guessed from reports of boards with 24 GB."""


def compile_all(
    cann: Cann, jobs: Sequence[Job], soc: str, into: Path, progress: Progress
) -> dict[str, str]:
    """Compile every model of the artifact `into`: its name -> its OM. What was done is not done again.

    Works in the cache, where it stays if one fails, and copies the whole into the artifact.
    Raises as atc.compile_model.
    """
    timeout = _timeout()
    work = cache.folder() / "om" / _key(cann, jobs, soc, into)
    work.mkdir(parents=True, exist_ok=True)
    graphs = work / "graphs"
    if not graphs.exists():
        shutil.copytree(into / "graphs", graphs)

    def one(job: Job) -> str:
        stamp = work / f"{job.name}.done"
        if stamp.exists() and (work / (known := stamp.read_text())).is_file():
            return known
        with progress.phase(f"atc {job.name} for {soc}"):
            made = compile_model(cann, job, soc, work, OUTPUT, timeout)
        stamp.write_text(made)
        return made

    with ThreadPoolExecutor(at_once(jobs, into)) as pool:
        found = dict(zip((j.name for j in jobs), pool.map(one, jobs), strict=True))
    (work / OUTPUT / CHIP).write_text(f"{soc}\n")
    shutil.copytree(work / OUTPUT, into / OUTPUT, dirs_exist_ok=True)
    shutil.rmtree(work)
    return found


def _timeout() -> float:
    text = os.environ.get("SPECC_ATC_TIMEOUT", "")
    try:
        return float(text) if text else 2 * _HOURS
    except ValueError as error:
        raise BackendError(
            "SPECC-E0435", "SPECC_ATC_TIMEOUT is no number of seconds", found=text, cure="correct or unset it"
        ) from error  # fmt: skip


def _key(cann: Cann, jobs: Sequence[Job], soc: str, into: Path) -> str:
    facts = [soc, cann.version, str(cann.atc)]
    facts += [f"{j.name} {cache.sha256(into / j.model)}" for j in jobs]
    facts += sorted(p.name for p in (into / "graphs").iterdir())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def at_once(jobs: Sequence[Job], into: Path) -> int:
    """How many atc fit into memory side by side: each holds all weights, twice while it converts them."""
    weights = sum(p.stat().st_size for p in (into / "graphs").glob("weight_*"))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(ln.split()[1]) * 1024 for ln in lines if ln.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 1
    return max(
        1, min(len(jobs), len(os.sched_getaffinity(0)) // 2, free // (2 * weights + _OVERHEAD))
    )


def write_script(jobs: Sequence[Job], soc: str, into: Path) -> str:
    """build_om.sh: the same commands, for a machine with CANN. Models that have an OM already are passed over."""
    lines = [
        "#!/bin/sh",
        "# Compiles the models of this artifact for Ascend, where CANN is installed. Run it again to go on.",
        "# usage: ./build_om.sh [SOC]     SOC as in `npu-smi info`: Ascend and the column Name",
        "set -eu",
        'cd "$(dirname "$0")"',
        f"SOC=${{1:-{soc}}}",
        'if ! command -v atc >/dev/null; then',
        '  for env in "${ASCEND_HOME_PATH:-}/set_env.sh" /usr/local/Ascend/cann/set_env.sh '
        "/usr/local/Ascend/ascend-toolkit/set_env.sh; do",
        '    if [ -f "$env" ]; then set +u; . "$env"; set -u; break; fi',
        "  done",
        "fi",
        'command -v atc >/dev/null || { echo "there is no atc: install CANN, or source its set_env.sh" >&2; exit 3; }',
        f"mkdir -p {OUTPUT}",
        f'MADE=$(cat {OUTPUT}/{CHIP} 2>/dev/null || echo "$SOC")',
        f'[ "$MADE" = "$SOC" ] || {{ echo "{OUTPUT} has OMs for $MADE: delete it first" >&2; exit 2; }}',
        f'echo "$SOC" > {OUTPUT}/{CHIP}',
        "compile() {  # name, then what atc is given",
        "  name=$1; shift",
        f'  for made in "{OUTPUT}/$name.om" "{OUTPUT}/$name"_*.om; do',
        '    if [ -f "$made" ]; then echo "$name: $made is there"; return; fi',
        "  done",
        '  echo "$name: compiling"',
        '  atc "$@"',
        "}",
    ]  # fmt: skip
    for job in jobs:
        given = arguments(job, soc, OUTPUT)
        words = [
            '"--soc_version=$SOC"' if a.startswith("--soc_version=") else shlex.quote(a)
            for a in given
        ]
        lines.append(f"compile {shlex.quote(job.name)} \\\n  " + " \\\n  ".join(words))
    lines.append('echo "done: what is in om/ has been verified on no NPU by specc"')
    path = into / SCRIPT
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return SCRIPT
