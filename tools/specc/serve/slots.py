"""Texts in the making, a turn at a time. The scheduler knows `Slots`; over sessions they take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from specc.errors import RequestError
from specc.grammar import Grammar
from specc.runtime import ADAPTIVE, Artifact, Logprobs, Manifest, Option, Session, Stats
from specc.runtime.draft_client import LATE, DraftClient
from specc.serve.policy import OFF, REMOTE, Decision, Dispatcher, Facts


@dataclass(frozen=True)
class Ask:
    """One text to continue; options as in specc.h, `options` the rest of them by name."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    num_speculative_tokens: int = ADAPTIVE
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    grammar: Grammar | None = None

    @property
    def logprobs(self) -> bool:
        """Whether they are asked for."""
        return "logprobs" in self.options

    @property
    def prompt_logprobs(self) -> bool:
        """The same of the prompt's tokens."""
        return "prompt_logprobs" in self.options


@dataclass(frozen=True)
class Progress:
    """What a turn gave: `prefilled` prompt tokens are done, or a round was played.

    `prompt_logprobs`, if those were asked for, come with the last of the prompt, None for its first token.
    `tokens` are the round's new ones, with `logprobs` if those were asked for; of `drafted` tokens,
    `accepted` were what the target says; the next was one that a grammar forbids if `forbidden`.
    `fallback`: why a round drafted nothing. `method`: who was to draft, where something chooses that.
    `late`: drafts that a draft service was asked for and did not give in time.
    `finish`: the session's reason; empty while it goes on.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs | None, ...] = ()
    played: bool = False
    prefilled: int = 0
    drafted: int = 0
    accepted: int = 0
    forbidden: bool = False
    fallback: str = ""
    method: str = ""
    late: int = 0
    finish: str = ""


class Slot(Protocol):
    """One text that holds state."""

    @property
    def stats(self) -> Stats:
        """Of the whole text so far."""
        ...

    def close(self) -> None:
        """Free its state, whatever it was doing."""
        ...


class Slots(Protocol):
    """What runs the texts: sessions in turn, or one batch.

    Used from one thread alone.
    """

    @property
    def capacity(self) -> int:
        """How many may be open at once."""
        ...

    def open(self, ask: Ask) -> Slot:
        """A slot for `ask`; raises RequestError (SPECC-E0608) if its state cannot be had."""
        ...

    def turn(self, slots: Sequence[Any]) -> Iterator[tuple[Any, Progress | Exception]]:
        """One turn of each slot, told as soon as it is known.

        The caller may close a slot between two of them. A slot whose turn failed, with the exception told, takes no
        further one.
        """
        ...


class SessionSlots:
    """One session for each text, which take turns: a prefill chunk or a round each."""

    def __init__(
        self, artifact: Artifact, capacity: int, drafts: DraftClient | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:  # fmt: skip
        """`drafts` is a service that a `dispatcher` may choose; without one the artifact drafts as it does."""
        self._artifact, self._drafts, self._dispatcher = artifact, drafts, dispatcher
        self.capacity = capacity

    def open(self, ask: Ask) -> SessionSlot:
        manifest = self._artifact.manifest
        return SessionSlot(self._artifact.session(), manifest, ask, self._drafts, self._dispatcher)

    def turn(
        self, slots: Sequence[SessionSlot]
    ) -> Iterator[tuple[SessionSlot, Progress | Exception]]:
        memory = len(slots) / self.capacity  # each holds the same
        if self._dispatcher is not None:
            self._dispatcher.look()
        for slot in slots:
            if not slot.closed:
                yield slot, _told(partial(slot.turn, len(slots), memory))


class BatchSlots:
    """The sessions of one batch: a prefill chunk of each that has some left, then a round of all others in one pass."""

    def __init__(
        self, artifact: Artifact, capacity: int, drafts: DraftClient | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:  # fmt: skip
        """As of SessionSlots, for an artifact that was compiled for `capacity` texts or more."""
        self._manifest, self._batch = artifact.manifest, artifact.batch(capacity)
        self._drafts, self._dispatcher = drafts, dispatcher
        self.capacity = capacity
        self.passes = self._batch.passes

    def open(self, ask: Ask) -> SessionSlot:
        session = self._batch.session()
        return SessionSlot(session, self._manifest, ask, self._drafts, self._dispatcher)

    def turn(
        self, slots: Sequence[SessionSlot]
    ) -> Iterator[tuple[SessionSlot, Progress | Exception]]:
        memory = len(slots) / self.capacity
        if self._dispatcher is not None:
            self._dispatcher.look()
        playing = []
        for slot in slots:
            if slot.closed:
                continue
            if slot.feeding:
                yield slot, _told(slot.feed)
                continue
            try:
                slot.choose(len(slots), memory)
                playing.append(slot)
            except Exception as error:
                yield slot, error
        playing = [slot for slot in playing if not slot.closed]
        self._batch.step([slot.session for slot in playing])
        self.passes = self._batch.passes
        for slot in playing:
            if not slot.closed:
                yield slot, _told(slot.play)


def _told(turn: Callable[[], Progress]) -> Progress | Exception:
    try:
        return turn()
    except Exception as error:  # of this text, as from its grammar: the others go on
        return error


class SessionSlot:
    """A session, fed its prompt in chunks so that nobody waits for a long one."""

    def __init__(
        self, session: Session, manifest: Manifest, ask: Ask, drafts: DraftClient | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:  # fmt: skip
        """The session is the slot's from here on."""
        self.session, self._ask, self._manifest = session, ask, manifest
        # (A request for K = 0 leaves nothing to decide.)
        self._dispatcher = dispatcher if ask.num_speculative_tokens != 0 else None
        self._decision, self._method = Decision(), ""
        self._drafts, self._remote = drafts, None
        if drafts is not None and self._dispatcher is not None:
            # The same noise on both sides lets drafts be the target's choice; p/q must not know it.
            drawn = ask.options.get("acceptance_rule", "match") == "match"
            self._remote = drafts.text(ask.temperature if drawn else 0.0, ask.seed)
        self._round_s = 0.0
        self._fed = self._given = 0
        self._seen: dict[str, int] = {}
        self._prefill_tokens, self._prefill_s = 0, 0.0
        self._prompt_logprobs: list[Logprobs | None] = []
        self.closed = False
        try:
            self.session.configure(
                max_tokens=ask.max_tokens, temperature=ask.temperature, seed=ask.seed,
                ignore_eos=ask.ignore_eos, num_speculative_tokens=ask.num_speculative_tokens,
            )  # fmt: skip
            self.session.set_stop_tokens(ask.stop_token_ids)
            self.session.configure(**ask.options)
            if ask.grammar is not None:
                self.session.set_mask(ask.grammar.mask())
            if self._remote is not None:
                self._remote.prepare(ask.prompt_ids)
        except BaseException:
            self.close()
            raise

    @property
    def stats(self) -> Stats:
        found = self.session.stats
        return replace(
            found,
            prefill_tokens=self._prefill_tokens + found.prefill_tokens,
            prefill_s=self._prefill_s + found.prefill_s,
        )

    def close(self) -> None:
        self.closed = True
        if self._remote is not None:
            self._remote.close()
        self.session.close()

    def turn(self, batch: int = 1, memory: float = 0.0) -> Progress:
        """The next chunk of the prompt; after the last, a round.

        `batch`: texts in the making; `memory`: the part that they hold of what they may.
        """
        if self.feeding:
            return self.feed()
        self.choose(batch, memory)
        return self.play()

    @property
    def feeding(self) -> bool:
        """Whether some of the prompt is left."""
        return self._fed < len(self._ask.prompt_ids)

    def choose(self, batch: int, memory: float) -> None:
        """Who drafts in the next round."""
        if self._dispatcher is not None:
            well = self._drafts is not None and self._drafts.healthy
            facts = Facts(len(self._ask.prompt_ids) + self._given, batch, memory, well)
            self._use(self._decision.next(self._dispatcher.policy, facts))

    def _use(self, method: str) -> None:
        """Let `method` draft from the next round on."""
        if self._remote is not None:
            self._remote.why, self._remote.asked = "", 0
        if self._dispatcher is None or method == self._method:
            return
        drafter, session = self._manifest.drafter, self.session
        session.set(
            "num_speculative_tokens", 0 if method == OFF else self._ask.num_speculative_tokens
        )
        if self._remote is not None:
            session.set_drafter(self._remote if method == REMOTE else None)
        if not drafter.host:
            own = "graph" if self._dispatcher.names else "any"  # (as pays, where nothing is named)
            alone = method in (REMOTE, drafter.host_drafter)
            session.set("draft_source", "host" if alone else own)
        self._method = method

    def feed(self) -> Progress:
        """The next chunk of the prompt. Each append starts statistics anew, so those of prefill are summed here."""
        if self._fed:
            self._prefill_tokens += int(self.session.stat("prefill_tokens"))
            self._prefill_s += self.session.stat("prefill_s")
        # Logprobs come from calls as long as a round's, and others wait no longer for these than for a round.
        rows = (
            self._manifest.num_speculative_tokens[-1] + 1
            if self._ask.prompt_logprobs
            else self._manifest.model.prefill_chunk
        )
        # The last token of a text is a root, not prefilled: one more at first fills whole chunks.
        size = rows + (self._fed == 0)
        chunk = self._ask.prompt_ids[self._fed : self._fed + size]
        if not self.session.append(chunk):
            raise RequestError("SPECC-E0600", "a prompt was cancelled by nobody", cure="report it")
        self._fed += len(chunk)
        if self._ask.prompt_logprobs:
            self._prompt_logprobs += self.session.prompt_logprobs()
        told = () if self.feeding else tuple(self._prompt_logprobs)
        return Progress(prefilled=len(chunk), prompt_logprobs=told)

    def play(self) -> Progress:
        """A round, or what a batch made of it: all the tokens it committed, none if the first was a stop token."""
        before = self._given
        tokens: list[int] = []
        logprobs: list[Logprobs] = []
        for token in self.session.round():
            tokens.append(token)
            if self._ask.logprobs:
                logprobs.append(self.session.logprobs())
        self._given += len(tokens)
        played, drafted, accepted, forbidden = self._since(
            "rounds", "draft_tokens", "accepted_tokens", "cut_grammar"
        )
        if self._drafts is not None and played:
            self._learn(drafted, accepted)
        remote, finish = self._remote, self.session.finish_reason
        if remote is not None and self._method == REMOTE and not finish:
            remote.ahead(self.session.tokens)  # while others have their turn
        return Progress(
            tuple(tokens), tuple(logprobs), played=played > 0, drafted=drafted, accepted=accepted,
            forbidden=forbidden > 0,
            fallback=self._why_none(before) if played and not drafted else "",
            method=self._method,
            late=remote.asked if remote is not None and remote.why == LATE else 0,
            finish=finish,
        )  # fmt: skip

    def _learn(self, drafted: int, accepted: int) -> None:
        """Tell the client of the draft service what a round costs and gives: its deadlines follow."""
        before, self._round_s = self._round_s, self.session.stat("round_s")
        if self._drafts is not None and (not drafted or self._method == REMOTE):
            self._drafts.learn(self._round_s - before, drafted, accepted)

    def _since(self, *names: str) -> list[int]:
        """How much these counts grew since they were asked for last."""
        now = {name: int(self.session.stat(name)) for name in names}
        grown = [count - self._seen.get(name, 0) for name, count in now.items()]
        self._seen = now
        return grown

    def _why_none(self, before: int) -> str:
        """Why the round after `before` new tokens drafted nothing."""
        lengths = self._manifest.num_speculative_tokens
        if len(lengths) == 1 or self._ask.num_speculative_tokens == 0:
            return "disabled"
        if self._method == OFF:
            return "policy"
        if self._remote is not None and self._remote.why:
            return self._remote.why
        if self._ask.max_tokens - before <= 1:
            return "length"
        root = len(self._ask.prompt_ids) + before - 1
        if self._manifest.model.max_model_len - 1 - root < lengths[1]:
            return "context"
        return "no_draft"  # the drafter had no guess, or the controller found none to pay
