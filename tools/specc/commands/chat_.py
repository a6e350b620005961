"""`specc chat`: a conversation in the terminal, or as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path

from specc import flags, output
from specc.commands.run_ import summary
from specc.conversation import Answer, Conversation
from specc.engines import open_compiled
from specc.errors import RequestError
from specc.flags import Json
from specc.recipe import Recipe
from specc.runtime import Manifest
from specc.sampling import PLAIN, Sampling
from specc.templates import ChatTemplate

HELP = "/reset forgets the conversation, /exit ends, Ctrl-C stops an answer."


def main(
    artifact: Path,
    /,
    *,
    system: str | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    num_speculative_tokens: int | None = None,
    length_policy: str = "adaptive",
    threads: int = 0,
    recipe: Recipe = None,
    sampling: Sampling = PLAIN,
    json: Json = False,
) -> int:
    """Talk with an artifact.

    Each message is answered with the state of those before it. With --json every line of stdin is
    a message, and every answer one JSON object on a line.

    Example: specc chat smol.specc --system "Answer in one sentence."

    Args:
        artifact: Directory that `specc compile` made.
        system: First message, which sets the tone.
        max_tokens: Most tokens of an answer, 1 or more.
        temperature: 0 is greedy; above, tokens are sampled.
        seed: Of the sampling noise.
        num_speculative_tokens: One K of the artifact; left out, the engine adapts it.
        length_policy: What chooses K: adaptive, by measured costs; prompt-length; aimd; batch:N, nothing
            while more than N texts are made at once; or priority, by draft_weight. The text is the same.
        threads: Threads; 0 takes the physical cores this process may use.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        sampling: How tokens are chosen.
        json: Read messages from stdin, and print one JSON object for each answer.
    """
    del recipe  # (read before this was called)
    flags.at_least("--max-tokens", max_tokens, 1)
    flags.at_least("--temperature", temperature, 0)
    flags.threads(threads)
    Manifest.read(
        artifact
    )  # a folder that is no artifact is told apart from one without a template
    options = sampling.options()
    template = ChatTemplate.of_artifact(artifact)
    with open_compiled(artifact, threads) as engine, engine.session() as session:
        k = flags.draft_length(engine.manifest, num_speculative_tokens)
        options |= flags.length_policy(engine.manifest, length_policy, k)
        session.configure(
            max_tokens=max_tokens, temperature=temperature, seed=seed, num_speculative_tokens=k,
            **options,
        )  # fmt: skip
        spoken = flags.speculation(engine.manifest, k, length_policy)
        conversation = Conversation(engine, session, template, system)
        if not json:
            output.say(f"speculation: {spoken}")
            output.say(HELP)
        _converse(conversation, spoken, as_json=json)
    return output.EXIT_OK


def _converse(conversation: Conversation, spoken: str, *, as_json: bool) -> None:
    while (line := _read_line(quiet=as_json)) is not None:
        command = line.strip()
        if command == "/exit":
            return
        if command == "/reset":
            conversation.reset()
        elif command in ("/help", "/?"):
            output.say(HELP)
        elif command:
            _turn(conversation, line, spoken, as_json=as_json)


def _turn(conversation: Conversation, line: str, spoken: str, *, as_json: bool) -> None:
    """One message and its answer. What is wrong with one message does not end the conversation."""
    try:
        answer = conversation.ask(line, _ignore if as_json else _show)
    except RequestError as error:
        output.emit_error(error, as_json=as_json)
        return
    if as_json:
        output.emit({**_payload(answer), "speculation": spoken})
        return
    sys.stdout.write("\n")
    output.say(summary(answer.stats, answer.finish_reason))
    if answer.finish_reason == "context":
        output.say("the context is full: /reset starts over")


def _read_line(*, quiet: bool) -> str | None:
    """The next message; None at the end. Ctrl-C at the prompt ends too."""
    interactive = sys.stdin.isatty() and not quiet
    if interactive:
        import readline  # noqa: F401 (line editing, for people)
    try:
        return input("> " if interactive else "")
    except (EOFError, KeyboardInterrupt):
        if interactive:
            output.say()
        return None


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _ignore(piece: str) -> None:
    del piece


def _payload(answer: Answer) -> dict[str, object]:
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "reused_tokens": answer.reused_tokens,
        "stats": answer.stats.as_json(),
    }
