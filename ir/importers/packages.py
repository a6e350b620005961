"""Models inside installed Python packages, found through their metadata; no code of a package is imported."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from importlib import metadata
from pathlib import Path

from specc.errors import ModelError


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
            cure=f"pip install {name}",
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
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "specc" / "packages"
    final = cache / f"{name}-{distribution.version}" / target
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
        cure=f"pip install --force-reinstall {name}, or pass the path of the .gguf",
    )
