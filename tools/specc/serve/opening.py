"""What a process needs to serve an artifact, as plain values: one server opens it, or each of several replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from specc.commands.run_ import has_tokenizer
from specc.engines import open_compiled
from specc.errors import RequestError
from specc.runtime import Manifest
from specc.runtime.draft_address import Address
from specc.runtime.draft_client import DraftClient
from specc.serve.policy import Dispatcher
from specc.serve.service import Service, Settings


@dataclass(frozen=True)
class Opening:
    """`drafts`: where a draft service is; `method_policy`: a file that says who drafts."""

    artifact: Path
    threads: int
    settings: Settings
    drafts: Address | None = None
    draft_deadline: float | None = None
    method_policy: Path | None = None

    def dispatcher(self) -> Dispatcher | None:
        """Who says who drafts, if anybody does; raises UsageError (SPECC-E0721, E0722)."""
        if self.drafts is None and self.method_policy is None:
            return None
        manifest = Manifest.read(self.artifact)
        return Dispatcher(manifest, self.method_policy, draft_service=self.drafts is not None)

    @contextmanager
    def open(self) -> Iterator[Service]:
        """The service, which is stopped in the end.

        Raises RequestError (SPECC-E0605) without a tokenizer, and what the artifact, the draft service and the policy
        raise.
        """
        with ExitStack() as held:
            dispatcher, drafts = self.dispatcher(), None
            if self.drafts is not None:
                drafts = DraftClient(
                    self.drafts, Manifest.read(self.artifact), deadline_s=self.draft_deadline
                )
                held.callback(drafts.close)
            engine = held.enter_context(open_compiled(self.artifact, self.threads))
            if not has_tokenizer(engine):
                raise RequestError(
                    "SPECC-E0605", "the artifact has no tokenizer", where=str(self.artifact),
                    cure="compile it from a model that has one",
                )  # fmt: skip
            service = Service(engine, self.settings, drafts, dispatcher)
            held.callback(service.scheduler.stop)
            yield service
