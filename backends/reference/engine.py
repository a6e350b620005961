"""A reference artifact behind the interface of `specc.runtime.Engine`, for `specc run`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn, Self

from specc.backends.reference.executor import ReferenceArtifact
from specc.errors import ArtifactError, RequestError
from specc.runtime import ADAPTIVE, Generation, Manifest, Option, Stats

_TOKENIZER = "tokenizer/tokenizer.json"


class ReferenceEngine:
    """Slow and exact. One text at a time, no sessions; K is what is asked for, the greatest if adaptive."""

    def __init__(self, path: Path) -> None:
        self._artifact = ReferenceArtifact.load(path)
        self._path = path

    @property
    def manifest(self) -> Manifest:
        """What the artifact says of itself."""
        return self._artifact.manifest

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids by Hugging Face's own tokenizer; raises RequestError (SPECC-E0605) if there is none."""
        tokenizer = self._tokenizer()
        tokenizer.encode_special_tokens = not parse_special
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`."""
        text: str = self._tokenizer().decode(list(ids), skip_special_tokens=skip_special)
        return text

    def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int = 128, temperature: float = 0.0,
        seed: int = 0, num_speculative_tokens: int = ADAPTIVE, draft_depth: int = ADAPTIVE,
        ignore_eos: bool = False, options: Mapping[str, Option] = MappingProxyType({}),
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:  # fmt: skip
        """Continue `prompt_ids`; statistics hold counts of tokens and the time, nothing by round.

        Raises RequestError (SPECC-E0601) for `options`: the rounds know temperature and seed alone.
        """
        if options:
            raise RequestError(
                "SPECC-E0601", "a reference artifact knows temperature and seed alone",
                where=", ".join(options), cure="leave it out, or compile with --backend inductor",
            )  # fmt: skip
        depths = self.manifest.drafter.depths
        k = (
            self.manifest.num_speculative_tokens[-1]
            if num_speculative_tokens < 0
            else num_speculative_tokens
        )
        depth = (depths[-1] if draft_depth < 0 else draft_depth) if depths else 0
        began = time.monotonic()
        tokens = []
        for token in self._artifact.generate(
            prompt_ids, max_tokens=max_tokens, num_speculative_tokens=k, depth=depth,
            temperature=temperature, seed=seed, ignore_eos=ignore_eos,
        ):  # fmt: skip
            tokens.append(token)
            if on_token is not None:
                on_token(token)
        model = self.manifest.model
        ended = bool(tokens) and tokens[-1] in model.eos_token_ids and not ignore_eos
        full = len(prompt_ids) + len(tokens) >= model.max_model_len
        reason = "stop" if ended else "context" if full and len(tokens) < max_tokens else "length"
        return Generation(
            tuple(tokens), reason, _stats(len(tokens), len(prompt_ids), time.monotonic() - began, k)
        )

    def session(self) -> NoReturn:
        """Reference artifacts have none."""
        raise ArtifactError(
            "SPECC-E0412", "a reference artifact has no sessions", where=str(self._path),
            expected="`specc run`, one text at a time", cure="compile with --backend inductor",
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        path = self._path / _TOKENIZER
        if not path.is_file():
            raise RequestError(
                "SPECC-E0605", "the artifact has no tokenizer", cure="pass --token-ids"
            )
        return Tokenizer.from_file(str(path))


def _stats(new: int, prompt: int, seconds: float, k: int) -> Stats:
    return Stats(
        rounds=0, drafts=0, draft_tokens=0, accepted_tokens=0, new_tokens=new, prefill_tokens=prompt - 1,
        prefill_s=0.0, decode_s=seconds, draft_s=0.0, round_s=0.0, k_current=k, depth_current=0,
        acceptance_ewma=0.0, by_position=(), per_k=(),
    )  # fmt: skip
