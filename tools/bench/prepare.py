"""Makes every engine's form of one model, from the same weights; says what could not be made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specc.errors import UsageError

BITS = ("fp32", "int8", "int4")
_GGUF_TYPES = {"fp32": "ALL_F32", "int8": "MOSTLY_Q8_0", "int4": "MOSTLY_Q4_0"}
LISTING = "peers.json"


@dataclass(frozen=True)
class Contender:
    """An engine with a model: `kind` is a function of worker.py, run by the program `python`."""

    name: str
    kind: str
    bits: str
    model: str
    python: str = sys.executable
    option: str = ""


@dataclass(frozen=True)
class Absent:
    """What takes no part, and why."""

    name: str
    why: str


def listed(folder: Path) -> tuple[list[Contender], list[Absent]]:
    """What `prepare` left in `folder`."""
    path = folder / LISTING
    if not path.is_file():
        raise UsageError(
            "SPECC-E0119", "no peers were prepared there", where=str(path),
            cure="python -m bench prepare MODEL.gguf --into FOLDER",
        )  # fmt: skip
    found = json.loads(path.read_text("utf-8"))
    return [Contender(**c) for c in found["peers"]], [Absent(**a) for a in found["absent"]]


def prepare(
    gguf: Path, into: Path, python: str, say: Callable[[str], object]
) -> tuple[list[Contender], list[Absent]]:
    """Convert `gguf` for each peer that is installed; what is there already stays.

    `python` has the peers' packages.
    """
    into.mkdir(parents=True, exist_ok=True)
    peers: list[Contender] = []
    absent: list[Absent] = []

    def offer(peer: Contender, commands: Sequence[Sequence[str]]) -> None:
        say(f"{peer.name} {peer.bits}")
        if (why := _make(Path(peer.model), commands)) is None:
            peers.append(peer)
        else:
            absent.append(Absent(f"{peer.name} {peer.bits}", why))

    floats = into / "transformers"
    offer(
        Contender("transformers", "transformers", "fp32", str(floats)),  # specc has it itself
        [[sys.executable, "-c", _TO_FOLDER, str(gguf), str(floats)]],
    )
    for bits in BITS:
        target = into / f"onnxruntime-{bits}"
        offer(
            Contender("onnxruntime-genai", "onnxruntime_genai", bits, str(target), python),
            [[python, "-m", "onnxruntime_genai.models.builder", "-i", str(floats),
              "-o", str(target), "-p", bits, "-e", "cpu", "-c", str(into / "cache")]],
        )  # fmt: skip
        target = into / f"openvino-{bits}"
        offer(
            Contender(
                "openvino-genai", "openvino_genai", bits, str(target), python,
                "f32" if bits == "fp32" else "",
            ),
            [[python, "-m", "optimum.commands.optimum_cli", "export", "openvino", "-m", str(floats),
              "--task", "text-generation-with-past", "--weight-format", bits,
              # The default of 128 does not divide the rows of small models.
              *(["--group-size", "64"] if bits == "int4" else []), str(target)]],
        )  # fmt: skip
        target = into / f"llama-{bits}.gguf"
        source = gguf if bits == "fp32" else into / "llama-fp32.gguf"
        offer(
            Contender("llama.cpp", "llama_cpp", bits, str(target), python),
            [[python, "-c", _QUANTISE, str(source), str(target), _GGUF_TYPES[bits]]],
        )
    document = {"peers": [asdict(p) for p in peers], "absent": [asdict(a) for a in absent]}
    (into / LISTING).write_text(json.dumps(document, indent=1), "utf-8")
    return peers, absent


_TO_FOLDER = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from specc.ir.importers.gguf import filled_model
from specc.ir.importers.tokenizer_gguf import read_gguf_tokenizer
gguf, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = Tokenizer.from_str(json.dumps(read_gguf_tokenizer(gguf)))
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
filled_model(gguf).save_pretrained(folder)
"""

_QUANTISE = """
import os, sys
import llama_cpp
how = llama_cpp.llama_model_quantize_default_params()
how.ftype, how.allow_requantize = getattr(llama_cpp, "LLAMA_FTYPE_" + sys.argv[3]), True
how.nthread = len(os.sched_getaffinity(0))
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), how))
"""


def _make(target: Path, commands: Sequence[Sequence[str]]) -> str | None:
    """Run `commands` unless `target` is there; why it could not be made, or None."""
    if target.exists():
        return None
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        if done.returncode == 0:
            continue
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        lines = (done.stderr or done.stdout).strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {done.returncode}"
    return None if target.exists() else f"{commands[-1][0]} made no {target.name}"
