"""Requests to jobs, and what their jobs tell back: the part of the server that knows no HTTP."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from specc import flags, prompts
from specc.errors import RequestError, SpeccError
from specc.grammar import GUIDANCE, Grammar, Grammars
from specc.runtime import ADAPTIVE, Artifact, Option
from specc.runtime.draft_client import DraftClient
from specc.serve import bodies
from specc.serve.bodies import Body, ChatBody, CompletionBody
from specc.serve.metrics import Metrics
from specc.serve.policy import Dispatcher
from specc.serve.scheduler import Event, Job, Scheduler
from specc.serve.slots import Ask, BatchSlots, SessionSlots
from specc.templates import ChatTemplate, Message

_COMPLETION_TOKENS = 16
"""What OpenAI's completions take when nothing is said; chat goes on to the end of the context."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "name": (), "reasoning_content": (), "tool_calls": (), "tool_call_id": ("tool_calls",),
}  # fmt: skip
"""Of a message, what templates may leave unread; and what they read instead. (Results follow calls in their order.)"""


@dataclass(frozen=True)
class Settings:
    """How an artifact is served. Seconds and bytes; 0 seconds is for ever."""

    model: str
    max_sessions: int
    max_queue: int
    max_body: int
    timeout: float
    num_speculative_tokens: int = ADAPTIVE
    api_key: str | None = None
    metrics_prefix: str = "specc:"
    length_policy: str = "adaptive"
    refuse_without_drafts: bool = False
    grammar_backend: str = GUIDANCE


@dataclass(frozen=True)
class Choice:
    """A text to make: choice `index` of the answer. `echo` comes before what is generated."""

    index: int
    ask: Ask
    echo: str = ""


@dataclass(frozen=True)
class Request:
    """A request that was understood. `prompt_tokens`: of each prompt once, however many choices."""

    id: str
    created: int
    body: Body
    choices: tuple[Choice, ...]
    prompt_tokens: int

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return isinstance(self.body, ChatBody)


class Service:
    """A loaded artifact, its scheduler and its counters."""

    def __init__(
        self, engine: Artifact, settings: Settings, drafts: DraftClient | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:  # fmt: skip
        """With a `dispatcher`, it says who drafts, and `drafts` is a service that may."""
        self.engine, self.settings, self._drafts = engine, settings, drafts
        self.draining = False
        self.created = int(time.time())
        manifest = engine.manifest
        self.metrics = Metrics(manifest, settings.model, settings.metrics_prefix)
        batched = manifest.model.max_num_seqs > 1 and settings.max_sessions > 1
        kind = BatchSlots if batched else SessionSlots
        slots = kind(engine, settings.max_sessions, drafts, dispatcher)
        self.scheduler = Scheduler(slots, self.metrics, settings.max_queue)
        state = manifest.text_bytes
        show = self.metrics.show
        show("num_requests_running", "Texts with a slot.", lambda: self.scheduler.running)
        show("num_requests_waiting", "Texts that wait.", lambda: self.scheduler.waiting)
        show("slots", "Texts that may run at once.", lambda: settings.max_sessions)
        show(
            "state_bytes", "State that running texts hold.", lambda: state * self.scheduler.running
        )

        if isinstance(slots, BatchSlots):
            self._show_passes(slots)
        if drafts is not None:
            self._show_drafts(drafts)
        if dispatcher is not None and (file := dispatcher.file) is not None:
            show(
                "policy_files_refused",
                "Changed policies that could not be used.",
                lambda: file.refused,
            )

    def _show_passes(self, slots: BatchSlots) -> None:
        show = self.metrics.show
        show("passes", "Passes of the model over a batch.", lambda: slots.passes.passes)
        show("pass_texts", "Texts in them, summed over passes.", lambda: slots.passes.texts)
        show(
            "pass_rows", "Roots and drafts in them, summed over passes.", lambda: slots.passes.rows
        )
        show("pass_seconds", "Time that they took.", lambda: slots.passes.pass_s)

    def _show_drafts(self, drafts: DraftClient) -> None:
        show, counts = self.metrics.show, drafts.counts
        show("draft_service_healthy", "Whether the draft service is asked.", lambda: drafts.healthy)
        show("draft_service_answers", "Drafts that came in time.", lambda: counts.answered)
        show("draft_service_late", "Drafts that did not.", lambda: counts.late)
        show(
            "draft_service_stale", "Answers that nobody waited for any more.", lambda: counts.stale
        )
        show(
            "draft_service_round_trip_seconds", "Of the last draft that came in time.",
            lambda: drafts.round_trip_s,
        )  # fmt: skip

    @cached_property
    def grammars(self) -> Grammars:
        """Over the artifact's tokens; raises RequestError (SPECC-E0716, E0605) where there can be none."""
        return Grammars(self.engine, self.settings.grammar_backend)

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's; raises RequestError (SPECC-E0620) without one."""
        return ChatTemplate.of_artifact(Path(self.engine.path))

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self.scheduler.alive and not self.draining and not self.without_drafts

    @property
    def without_drafts(self) -> bool:
        """Whether requests are refused because the draft service is not well."""
        lost = self._drafts is not None and not self._drafts.healthy
        return lost and self.settings.refuse_without_drafts

    def understand(self, body: Body) -> Request:
        """Tokens and options of what is asked. Takes its time: not for the event loop.

        Raises RequestError: SPECC-E0706 for another model, E0704 for a K that was not compiled,
        E0602, E0603, E0607 for prompts that the engine would refuse, E0107 for what the template does,
        E0703, E0716, E0717 for grammars and words that cannot be followed.
        """
        if body.model not in (None, self.settings.model):
            raise RequestError(
                "SPECC-E0706", "there is no such model here", where="model",
                expected=self.settings.model, found=str(body.model)[:200], cure="ask for that one",
            )  # fmt: skip
        if isinstance(body, ChatBody):
            self._check_count(body.n)
            asked = [(self._chat_ids(body), "")]
        else:
            assert isinstance(body, CompletionBody)
            self._check_count(len(body.prompts) * body.n)
            asked = [self._prompt(prompt, echo=body.echo) for prompt in body.prompts]
        grammar = self._grammar(body)
        # Sampling without a seed differs from request to request.
        seed = secrets.randbits(62) if body.seed is None else body.seed
        choices = [
            Choice(index, self._ask(body, ids, seed + index % body.n, grammar), echo)
            for index, (ids, echo) in enumerate(a for a in asked for _ in range(body.n))
        ]
        kind = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
        return Request(
            f"{kind}-{uuid.uuid4().hex}", int(time.time()), body, tuple(choices),
            sum(len(ids) for ids, _ in asked),
        )  # fmt: skip

    def start(self, request: Request) -> Reply:
        """Queue its choices; on the event loop. Raises RequestError (SPECC-E0709, E0710)."""
        return Reply(self, request)

    def _check_count(self, count: int) -> None:
        most = self.settings.max_sessions + self.settings.max_queue
        if count > most:
            raise bodies.out_of_range("n", f"at most {most} texts in a request", count)

    def _chat_ids(self, body: ChatBody) -> list[int]:
        tools = body.tools if body.tool_choice != "none" else []
        try:
            if tools and not self.template.takes("tools"):
                raise bodies.unsupported("tools", "the model's chat template takes none")
            messages = [m.for_template() for m in body.messages]
            text = self.template.render(messages, tools=tools or None)
            self._check_fields(messages, tools, text)
        except SpeccError as error:
            if error.code not in ("SPECC-E0107", "SPECC-E0620"):
                raise
            # Where the template lies is not for clients to know.
            raise RequestError(
                error.code, error.what, where="messages", found=error.found,
                cure="change the messages, or continue plain text with /v1/completions",
            ) from error  # fmt: skip
        return self.engine.tokenize(text, add_special=False, parse_special=True)

    def _check_fields(
        self, messages: Sequence[Message], tools: Sequence[Message], text: str
    ) -> None:
        """Refuse a field that `text`, what the template makes of the messages, would be the same without."""
        mentioned = self.template.mentioned
        lost = {name for name, others in _FIELDS.items() if mentioned.isdisjoint((name, *others))}
        asked = [(i, n) for i, m in enumerate(messages) for n in m if n in lost and m[n]]
        if not asked:
            return
        # (A template can also write messages whole.)
        without = [{n: value for n, value in m.items() if n not in lost} for m in messages]
        if self.template.render(without, tools=tools or None) == text:
            index, name = asked[0]
            raise bodies.unsupported(
                f"messages.{index}.{name}", "the model's chat template takes none"
            )

    def _prompt(self, prompt: str | list[int], *, echo: bool) -> tuple[list[int], str]:
        if isinstance(prompt, str):
            return prompts.encode(self.engine, prompt), prompt if echo else ""
        self._check_ids("prompt", prompt)
        return prompt, self.engine.detokenize(prompt) if echo else ""

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        most = self.engine.manifest.model.vocab_size - 1
        if ids and max(ids) > most:
            raise RequestError(
                "SPECC-E0602", "a token id is out of range", where=name, expected=f"0 to {most}",
                found=str(max(ids)), cure="use the tokenizer of this model",
            )  # fmt: skip

    def _ask(self, body: Body, ids: Sequence[int], seed: int, grammar: Grammar | None) -> Ask:
        context = self.engine.manifest.model.max_model_len
        if not ids:
            raise RequestError(
                "SPECC-E0607", "the prompt is empty", where="prompt", expected="at least one token",
                cure="begin with the model's BOS token or a newline",
            )  # fmt: skip
        if len(ids) > context:
            raise RequestError(
                "SPECC-E0603", "the prompt does not fit into the context", where="prompt",
                expected=f"at most {context} tokens", found=str(len(ids)),
                cure="shorten the prompt, or compile with a larger --max-model-len",
            )  # fmt: skip
        self._check_ids("stop_token_ids", body.stop_token_ids)
        self._check_ids("logit_bias", [int(token) for token in body.logit_bias])
        most = body.max_tokens
        if isinstance(body, ChatBody):
            most = next((m for m in (body.max_completion_tokens, most) if m is not None), context)
        k = body.num_speculative_tokens
        if k not in (None, ADAPTIVE, *self.engine.manifest.num_speculative_tokens):
            known = ", ".join(map(str, self.engine.manifest.num_speculative_tokens))
            raise bodies.out_of_range("num_speculative_tokens", f"one of -1, {known}", k)
        return Ask(
            tuple(ids), _COMPLETION_TOKENS if most is None else most, body.temperature,
            (seed + (1 << 63)) % (1 << 64) - (1 << 63),
            self.settings.num_speculative_tokens if k is None else k, body.ignore_eos,
            tuple(body.stop_token_ids), self._options(body) | self._policy(body), grammar,
        )  # fmt: skip

    def _options(self, body: Body) -> dict[str, Option]:
        options = body.options
        banned = {self._word(word) for word in body.bad_words}
        if body.allowed_token_ids is not None:
            self._check_ids("allowed_token_ids", body.allowed_token_ids)
            vocabulary = self.engine.manifest.model.vocab_size
            banned.update(set(range(vocabulary)).difference(body.allowed_token_ids))
        if banned:
            options["banned_token_ids"] = sorted(banned)
        return options

    def _policy(self, body: Body) -> dict[str, Option]:
        """The server's, unless the request names a K that would contradict it."""
        policy, k = self.settings.length_policy, body.num_speculative_tokens
        if body.draft_weight != 1 and policy != "priority":
            raise bodies.unsupported(
                "draft_weight", "the server shares drafts by no weights (--length-policy priority)"
            )
        if policy == "adaptive" or (k not in (None, ADAPTIVE) and policy in flags.ALONE):
            return {}
        return {"length_policy": policy, "draft_weight": body.draft_weight}

    def _word(self, word: str) -> int:
        """The one token of a word that must not be said."""
        ids = self.engine.tokenize(word, add_special=False)
        if len(ids) != 1:
            raise bodies.unsupported(
                "bad_words", f"{word!r} is {len(ids)} tokens; only single ones can be banned"
            )
        return ids[0]

    def _grammar(self, body: Body) -> Grammar | None:
        if not body.grammars:
            return None
        ((where, kind, source),) = body.grammars
        return self.grammars.compile(kind, source, where)


class Reply:
    """Jobs under way for one request, and what they tell. Belongs to the event loop."""

    def __init__(self, service: Service, request: Request) -> None:
        self.service, self.request = service, request
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self.jobs = [self._job(choice) for choice in request.choices]
        service.scheduler.submit(self.jobs)

    def _job(self, choice: Choice) -> Job:
        def deliver(event: Event) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._events.put_nowait, (choice.index, event))

        service = self.service
        stops, timeout = self.request.body.stops, service.settings.timeout
        return Job(choice.ask, service.engine.detokenize, stops, deliver, timeout)

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Until all have ended. Raises the error of the first that failed."""
        choices = self.request.choices
        for choice in choices:
            if choice.echo and not choice.ask.prompt_logprobs:
                yield choice.index, Event(text=choice.echo)
        left = len(self.jobs)
        while left:
            index, event = await self._events.get()
            if event.error is not None:
                raise event.error
            if event.prompt_logprobs:  # what is echoed has waited for them
                event = replace(event, text=choices[index].echo + event.text)
            yield index, event
            left -= bool(event.finish)

    def cancel(self) -> None:
        """Nobody wants the rest; at the end it does nothing."""
        if any(job.ended is None for job in self.jobs):
            self.service.scheduler.cancel(self.jobs)
