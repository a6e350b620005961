"""`specc serve`: an artifact behind OpenAI's HTTP interface."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specc import flags, grammar, output
from specc.checks import available_memory
from specc.draft_service import MOST_CONNECTIONS
from specc.errors import UsageError
from specc.flags import Json
from specc.progress import human_bytes
from specc.recipe import Recipe
from specc.runtime import Manifest, draft_address
from specc.runtime.draft_client import CONNECTIONS

MOST_PORT = 65535
_MOST_DEADLINE = 60.0
"""Seconds."""


def main(
    artifact: Path,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_model_name: str | None = None,
    api_key: Annotated[str | None, Parameter(env_var="SPECC_API_KEY")] = None,
    max_sessions: int = 16,
    state_memory: int | None = None,
    max_queue: int = 64,
    max_body: int = 4 << 20,
    timeout: float = 600,
    drain_timeout: float = 30,
    num_speculative_tokens: int | None = None,
    length_policy: str = "adaptive",
    draft_socket: str | None = None,
    draft_tls: Path | None = None,
    draft_deadline: float | None = None,
    on_draft_loss: Literal["plain", "503"] = "plain",
    method_policy: Path | None = None,
    grammar_backend: Literal["guidance", "xgrammar"] = "guidance",
    replicas: str | None = None,
    metrics_prefix: str = "specc",
    threads: int = 0,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Serve an artifact over OpenAI's HTTP interface.

    Completions and chat, whole or streamed; /v1/models, /health, /ready and /metrics. SIGTERM and
    Ctrl-C let those finish who are being served; a second one does not wait.

    Example: specc serve smol.specc --port 8000

    Args:
        artifact: Directory that `specc compile` made.
        host: Address to listen on; 0.0.0.0 for all.
        port: Port to listen on; 0 takes a free one.
        served_model_name: What requests call the model; left out, the artifact's own name.
        api_key: Key that requests must bear. Better in the environment, where `ps` does not show it.
        max_sessions: Most texts that are made at once, 1 or more. They take turns; or share each pass of the model,
            where the artifact was compiled with --max-num-seqs, which then is the most.
        state_memory: Bytes that the state of all texts may take together; left out, half of what is
            available. As many texts run at once as fit.
        max_queue: Most texts that wait for a turn; more are refused (429).
        max_body: Most bytes of a request's body (413).
        timeout: Seconds for a request, waiting included; 0 is for ever.
        drain_timeout: Seconds to finish in when the server is to stop.
        num_speculative_tokens: One K of the artifact, for requests that do not say; left out, the
            engine adapts it.
        length_policy: What chooses K: adaptive, by measured costs; prompt-length; aimd; batch:N, nothing
            while more than N texts are made at once; or priority, by the draft_weight of each request.
        draft_socket: Socket of a `specc draft-service`, a path or grpc://HOST:PORT; it drafts while it is well.
        draft_tls: Folder with ca.pem, cert.pem and key.pem, for a draft service on another machine.
        draft_deadline: Seconds that a draft may take; left out, what plain decoding takes for the drafts
            that will be kept. Later than that, the round goes on without.
        on_draft_loss: What becomes of new requests while the draft service is unwell: plain serves them
            without it, 503 refuses them.
        method_policy: JSON file that says which method drafts when; read again when it changes.
        grammar_backend: What follows JSON schemas and grammars: guidance (llguidance) or xgrammar.
        replicas: How many processes serve, 2, or 1:4 as texts wait: with Ray Serve, each with an artifact,
            threads, sessions and a queue of its own.
        metrics_prefix: Of the names on /metrics: vllm makes dashboards for vLLM work.
        threads: Threads; 0 takes the physical cores this process may use.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout when ready.
    """
    del recipe  # (read before this was called)
    flags.at_least("--max-queue", max_queue, 0)
    flags.at_least("--max-body", max_body, 1)
    flags.at_least("--timeout", timeout, 0)
    flags.at_least("--drain-timeout", drain_timeout, 0)
    flags.at_least("--max-sessions", max_sessions, 1)
    flags.threads(threads)
    about_drafts = draft_deadline is not None or on_draft_loss != "plain" or draft_tls is not None
    if draft_socket is None and about_drafts:
        raise flags.conflict(
            "--draft-deadline, --on-draft-loss and --draft-tls are about a draft service, and there is none",
            "give a --draft-socket, or leave them out",
        )
    if draft_deadline is not None and not 0 < draft_deadline <= _MOST_DEADLINE:
        raise flags.bad_value(
            "--draft-deadline", f"above 0, at most {_MOST_DEADLINE}", draft_deadline
        )
    if not 0 <= port <= MOST_PORT:
        raise flags.bad_value("--port", f"0 to {MOST_PORT}", port)
    flags.not_empty("--host", host, "an address", "leave it out for 127.0.0.1; 0.0.0.0 is for all")
    flags.not_empty(
        "--served-model-name", served_model_name, "a name", "leave it out for the artifact's own"
    )
    if not (metrics_prefix.isascii() and metrics_prefix.isidentifier()):
        raise flags.bad_value("--metrics-prefix", "a word of ASCII letters", metrics_prefix)
    flags.not_empty("--api-key", api_key, "a key", "leave it out to serve anybody")
    if grammar_backend != grammar.GUIDANCE:  # asked for: not only once a request needs it
        grammar.require(grammar_backend)
    try:
        from specc.serve.opening import Opening
        from specc.serve.replicas import serve_replicas
        from specc.serve.server import listen, serve
        from specc.serve.service import Settings
    except ImportError as error:
        raise UsageError(
            "SPECC-E0701", "serving needs packages that are not installed", found=str(error),
            cure="pip install 'specc-compiler[serve]'",
        ) from error  # fmt: skip
    manifest = Manifest.read(artifact)
    least, most = (1, 1) if replicas is None else flags.replicas("--replicas", replicas)
    most_drafting = MOST_CONNECTIONS // CONNECTIONS
    if draft_socket is not None and most > most_drafting:
        raise flags.conflict(
            "a draft service has no connections for so many --replicas",
            f"give at most --replicas {most_drafting}, or no --draft-socket",
            expected=f"at most {most_drafting}: {CONNECTIONS} of {MOST_CONNECTIONS} connections each",
            found=str(most),
        )
    sessions = _sessions(manifest, max_sessions, state_memory, most)
    k = flags.draft_length(manifest, num_speculative_tokens)
    flags.length_policy(manifest, length_policy, k)
    if draft_socket is not None:
        _check_drafts(manifest, artifact)
    settings = Settings(
        served_model_name or manifest.name, sessions, max_queue, max_body, timeout, k, api_key,
        f"{metrics_prefix}:", length_policy, refuse_without_drafts=on_draft_loss == "503",
        grammar_backend=grammar_backend,
    )  # fmt: skip
    drafts = None if draft_socket is None else draft_address.read(draft_socket, draft_tls)
    opening = Opening(artifact, threads, settings, drafts, draft_deadline, method_policy)

    def ready(url: str) -> None:
        if json:
            told = {"url": url, "model": settings.model, "pid": os.getpid(), "slots": sessions}
            output.emit(told)
        output.say(f"speculation: {flags.speculation(manifest, k, length_policy)}")
        if (dispatcher := opening.dispatcher()) is not None:
            output.say(f"methods: {', '.join(dispatcher.methods)}")
        each = "" if replicas is None else f" in each of {replicas} replicas"
        queue = f"{sessions} texts at once, {max_queue} may wait{each}"
        output.say(f"{settings.model} at {url}/v1, {queue}")

    if replicas is not None:
        opening = replace(opening, threads=threads or max(1, _cpus() // most))
        with listen(host, port) as free:  # (Ray would try for long)
            port = free.getsockname()[1]
        with opening.open():
            pass  # what is wrong is said before replicas are started
        url = _url(host, port)
        serve_replicas(opening, host, port, (least, most), drain_timeout, lambda: ready(url))
        return output.EXIT_OK
    with listen(host, port) as socket, opening.open() as service:
        url = _url(host, socket.getsockname()[1])
        serve(service, socket, lambda: ready(url), drain_timeout)
    return output.EXIT_OK


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _sessions(manifest: Manifest, most: int, budget: int | None, replicas: int) -> int:
    """How many texts the memory plan allows each of so many replicas, at most `most`, and those that one pass takes."""
    each = max(1, manifest.text_bytes)
    if manifest.model.max_num_seqs > 1:
        most = min(most, manifest.model.max_num_seqs)
    if budget is None:
        free = available_memory()
        budget = most * each * replicas if free is None else free // 2
    budget //= replicas
    if budget < each:
        raise UsageError(
            "SPECC-E0714", "the state of not even one text fits", where="--state-memory",
            expected=f"{human_bytes(each)} or more", found=human_bytes(budget),
            cure="give it more, or compile with a smaller --max-model-len",
        )  # fmt: skip
    return min(most, budget // each)


def _check_drafts(manifest: Manifest, path: Path) -> None:
    """Whether rounds of the artifact take drafts from outside."""
    if manifest.speculates and (
        manifest.drafter.host or all(r.verify is not None for r in manifest.rounds)
    ):
        return
    found = f"method {manifest.method}" if manifest.speculates else "rounds of K = 0 alone"
    raise UsageError(
        "SPECC-E0725", "rounds of this artifact take no drafts from a service", where=str(path),
        expected="rounds with K > 0 that come in pieces", found=found,
        cure="compile with --method ngram, or another one without --tree",
    )  # fmt: skip
