"""`specc run`: continue one prompt."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from specc import flags, output, prompts
from specc.engines import open_any
from specc.flags import Json, Switch
from specc.prompts import Prompt
from specc.recipe import Recipe
from specc.runtime import Engine, Generation
from specc.runtime.stats import Stats
from specc.sampling import PLAIN, Sampling
from specc.streaming import TextStream
from specc.templates import ChatTemplate

TOKENIZER = "tokenizer.bin"

_ANY = Parameter(allow_leading_hyphen=True)  # - is standard input, and a text may begin with one


def main(
    artifact: Path,
    /,
    *,
    prompt: Annotated[str | None, _ANY] = None,
    prompt_file: Annotated[Path | None, _ANY] = None,
    token_ids: Annotated[str | None, _ANY] = None,
    max_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    num_speculative_tokens: int | None = None,
    length_policy: str = "adaptive",
    guard_rounds: int | None = None,
    threads: int = 0,
    ignore_eos: Switch = False,
    sampling: Sampling = PLAIN,
    chat: Switch = False,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Continue a prompt with an artifact.

    The text goes to stdout as it comes; how it went goes to stderr.

    Example: specc run smol.specc --prompt "The sea is" --max-tokens 64

    Args:
        artifact: Directory that `specc compile` made.
        prompt: Text to continue, fed as it is.
        prompt_file: File with the text; - reads standard input.
        token_ids: Token ids in place of text, as in 1,2,3.
        max_tokens: Most new tokens, 0 or more.
        temperature: 0 is greedy; above, tokens are sampled.
        seed: Of the sampling noise: the same seed gives the same text with any K.
        num_speculative_tokens: One K of the artifact; left out, the engine adapts it. 0 is plain.
        length_policy: What chooses K: adaptive, by measured costs; prompt-length; aimd; batch:N, nothing
            while more than N texts are made at once; or priority, by draft_weight. The text is the same.
        guard_rounds: Rounds between two looks at the guards around the state; 1: each, 0: never; left out, 64.
        threads: Threads; 0 takes the physical cores this process may use.
        ignore_eos: Go on past the end-of-text token.
        sampling: How tokens are chosen.
        chat: Put the prompt into the model's chat template, as one user message.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout.
    """
    del recipe  # (read before this was called)
    asked = prompts.from_flags(prompt, prompt_file, token_ids)
    flags.at_least("--max-tokens", max_tokens, 0)
    flags.at_least("--temperature", temperature, 0)
    flags.at_least("--guard-rounds", guard_rounds, 0)
    flags.threads(threads)
    options = sampling.options() | ({} if guard_rounds is None else {"guard_rounds": guard_rounds})
    if chat and asked.text is None:
        raise flags.conflict("--chat needs text", "give the message with --prompt TEXT")
    began = time.monotonic()
    with open_any(artifact, threads) as engine:
        k = flags.draft_length(engine.manifest, num_speculative_tokens)
        options |= flags.length_policy(engine.manifest, length_policy, k)
        load_s = time.monotonic() - began
        prompt_ids = _prompt_ids(engine, artifact, asked, chat=chat)
        spoken = flags.speculation(engine.manifest, k, length_policy)
        printer = _Printer(engine, quiet=json)
        if not json:
            output.say(f"speculation: {spoken}")
        result = engine.generate(
            prompt_ids, max_tokens=max_tokens, temperature=temperature, seed=seed,
            num_speculative_tokens=k, ignore_eos=ignore_eos, options=options, on_token=printer.token,
        )  # fmt: skip
        printer.finish()
        if json:
            output.emit(_payload(engine, prompt_ids, result, spoken, load_s))
        else:
            output.say(summary(result.stats, result.finish_reason))
    return output.EXIT_OK


def has_tokenizer(engine: Engine) -> bool:
    """Whether the artifact can turn tokens into text."""
    return TOKENIZER in engine.manifest.files


def summary(stats: Stats, finish_reason: str) -> str:
    """One line: how much, how fast, how well drafted, why it ended."""
    parts = [f"{stats.new_tokens} tokens in {stats.decode_s:.2f} s"]
    if stats.decode_s > 0:
        parts[0] += f" ({stats.tokens_per_s:.1f} tokens/s)"
    if stats.prefill_tokens:
        parts.append(f"prompt {stats.prefill_tokens} tokens in {stats.prefill_s:.2f} s")
    if stats.drafts:
        rate = output.percent(stats.acceptance_rate)
        parts.append(f"acceptance length {stats.mean_acceptance_length:.2f} ({rate} of drafts)")
    parts.append(f"finish: {finish_reason}")
    return ", ".join(parts)


def _prompt_ids(engine: Engine, path: Path, asked: Prompt, *, chat: bool) -> list[int]:
    if not chat:
        return asked.ids(engine)
    message = {"role": "user", "content": asked.text or ""}
    text = ChatTemplate.of_artifact(path).render([message])
    # The template writes BOS itself where the model wants one.
    return engine.tokenize(text, add_special=False, parse_special=True)


class _Printer:
    """Prints text as it becomes whole; token ids where there is no tokenizer."""

    def __init__(self, engine: Engine, *, quiet: bool) -> None:
        self._stream = TextStream(engine.detokenize) if has_tokenizer(engine) else None
        self._quiet = quiet

    def token(self, token: int) -> None:
        if not self._quiet:
            self._write(self._stream.push(token) if self._stream else f"{token} ")

    def finish(self) -> None:
        if not self._quiet:
            self._write((self._stream.finish() if self._stream else "") + "\n")

    @staticmethod
    def _write(text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()


def _payload(
    engine: Engine, prompt_ids: list[int], result: Generation, spoken: str, load_s: float
) -> dict[str, object]:
    text = engine.detokenize(result.token_ids) if has_tokenizer(engine) else None
    return {
        "prompt_token_ids": prompt_ids,
        "token_ids": result.token_ids,
        "text": text,
        "finish_reason": result.finish_reason,
        "speculation": spoken,
        "stats": {**result.stats.as_json(), "load_s": load_s},
    }
