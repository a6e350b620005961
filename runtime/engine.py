"""Load an artifact and decode with it, through the C ABI. Needs the standard library alone."""

from __future__ import annotations

import ctypes as c
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self

from specc.errors import ArtifactError, RequestError
from specc.runtime import native
from specc.runtime.batch import Batch
from specc.runtime.graphs import GraphRunner, device_runs, require_onnxruntime, runner_for
from specc.runtime.manifest import Manifest, read_file
from specc.runtime.owned import Owned
from specc.runtime.session import ADAPTIVE, Option, Session
from specc.runtime.stats import Stats

LIBRARY = "lib/libspecc.so"


@dataclass(frozen=True)
class Generation:
    """What one prompt gave. `finish_reason`: stop, length, context or cancelled."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


class Engine(Protocol):
    """Whatever makes tokens from an artifact. `Artifact` is the one over the C ABI."""

    @property
    def manifest(self) -> Manifest: ...

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def session(self) -> Session: ...

    def close(self) -> None: ...


class Artifact(Owned):
    """A loaded artifact; its sessions share the mapped weights, and keep what they need when it is closed."""

    def __init__(self, path: Path, manifest: Manifest, library: c.CDLL, handle: int) -> None:
        super().__init__(library, handle, library.specc_artifact_free)
        self.path, self.manifest = path, manifest
        self._runner: GraphRunner | None = None
        if manifest.graphs is not None and not device_runs(path):
            require_onnxruntime(path, manifest.graphs)
            self._runner = runner_for(path, manifest, self.threads)

    @classmethod
    def load(cls, path: str | Path, threads: int = 0, *, library: Path | None = None) -> Self:
        """Open the artifact in directory `path`.

        `threads`: 0 takes the physical cores this process may use. They belong to its model
        library: where that is in use already, it keeps those it has (see `threads`).
        `library`: another libspecc.so than the artifact's.
        Raises ArtifactError: SPECC-E0501 to E0508.
        """
        path = Path(path)
        manifest = Manifest.read(path)
        _check_arch(manifest, path)
        shared = native.load_library(library or _own_library(path, manifest))
        handle = c.c_void_p()
        encoded = str(path.resolve()).encode()
        native.check(
            shared,
            shared.specc_artifact_load(encoded, native.int32("threads", threads), c.byref(handle)),
        )
        assert handle.value is not None
        return cls(path, manifest, shared, handle.value)

    @property
    def version(self) -> str:
        """Of the runtime library."""
        text: bytes = self._library.specc_version()
        return text.decode()

    @property
    def threads(self) -> int:
        """How many run its kernels."""
        count: int = self._library.specc_artifact_threads(self.handle)
        return count

    def use_threads(self, count: int) -> None:
        """Let only `count` of them work, from the next kernel on; raises RequestError (SPECC-E0601).

        Any thread may call it. They are those of all artifacts that share the model library.
        """
        self._check(
            self._library.specc_artifact_use_threads(self.handle, native.int32("threads", count))
        )

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of `text`. `parse_special`: the text of special tokens becomes their ids."""
        data = text.encode("utf-8", "replace")
        flags = int(add_special), int(parse_special)
        count = c.c_size_t()
        call = self._library.specc_tokenize
        self._check(call(self.handle, data, len(data), *flags, None, 0, c.byref(count)))
        ids = (c.c_int64 * count.value)()
        self._check(call(self.handle, data, len(data), *flags, ids, count.value, c.byref(count)))
        return list(ids[: count.value])

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`. Bytes that are no whole character become U+FFFD."""
        array = native.id_array(ids, len(ids))
        size = c.c_size_t()
        call = self._library.specc_detokenize
        skip = int(skip_special)
        self._check(call(self.handle, array, len(ids), skip, None, 0, c.byref(size)))
        text = c.create_string_buffer(size.value + 1)
        self._check(call(self.handle, array, len(ids), skip, text, size.value, c.byref(size)))
        return text.raw[: size.value].decode("utf-8", "replace")

    def session(self) -> Session:
        """A new text. Its state is allocated here."""
        handle = c.c_void_p()
        self._check(self._library.specc_session_open(self.handle, c.byref(handle)))
        assert handle.value is not None
        return Session(self._library, handle.value, self.manifest, self._runner)

    def batch(self, texts: int = 0) -> Batch:
        """Room for `texts` at once whose rounds are played together; 0: as many as it was compiled for.

        Raises RequestError (SPECC-E0601) for an artifact without `--max-num-seqs`, or for more.
        """
        handle = c.c_void_p()
        self._check(
            self._library.specc_batch_open(
                self.handle, native.int32("texts", texts), c.byref(handle)
            )
        )
        assert handle.value is not None
        return Batch(self._library, handle.value, self.manifest)

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        num_speculative_tokens: int = ADAPTIVE,
        draft_depth: int = ADAPTIVE,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        options: Mapping[str, Option] = MappingProxyType({}),
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Continue `prompt_ids`; `on_token` sees each new token as soon as it is committed.

        `options`: others by their names in specc.h.
        """
        with self.session() as session:
            session.configure(
                max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=ignore_eos,
                num_speculative_tokens=num_speculative_tokens, draft_depth=draft_depth,
            )  # fmt: skip
            session.set_stop_tokens(stop_token_ids)
            session.configure(**options)
            session.append(prompt_ids)
            if on_token is None:
                new = session.generate()
            else:
                new = []
                for token in session.iterate():
                    new.append(token)
                    on_token(token)
            return Generation(tuple(new), session.finish_reason, session.stats)

    def _closed(self) -> RequestError:
        return RequestError(
            "SPECC-E0607", "the artifact is closed", where=str(self.path), cure="load it again"
        )


def _check_arch(manifest: Manifest, path: Path) -> None:
    """The library itself is machine code: see that it can be this machine's before mapping it."""
    device, here = manifest.device, platform.machine()
    if device.type != "cpu" or device.arch not in (here, {"arm64": "aarch64"}.get(here)):
        raise ArtifactError(
            "SPECC-E0504", "the artifact is for other hardware", where=str(path),
            expected=f"{device.type} {device.arch} {device.isa}", found=f"cpu {here}",
            cure="compile it for this machine: specc compile MODEL -o ART",
        )  # fmt: skip


def _own_library(path: Path, manifest: Manifest) -> Path:
    """The artifact's libspecc.so, if it is the one the manifest vouches for.

    Mapping a truncated library would kill the process, not raise.
    """
    entry = manifest.files.get(LIBRARY)
    if entry is None:
        raise ArtifactError(
            "SPECC-E0502", f"the manifest lists no {LIBRARY}", where=str(path),
            cure="compile the artifact again",
        )  # fmt: skip
    read_file(path, entry)
    return path / LIBRARY
