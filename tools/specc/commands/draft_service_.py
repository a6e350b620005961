"""`specc draft-service`: drafts for servers in other processes."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from specc import flags, output
from specc.checks import available_memory
from specc.core_controller import CoreController, Meter, follow
from specc.draft_service import DraftService, listen
from specc.engines import open_compiled
from specc.flags import Json
from specc.progress import human_bytes
from specc.recipe import Recipe
from specc.runtime import Manifest, draft_address


def main(
    artifact: Path,
    /,
    *,
    socket: str,
    tls: Path | None = None,
    cores: str | None = None,
    min_cores: int | None = None,
    busy: float = 0.95,
    max_texts: int = 64,
    threads: int = 0,
    recipe: Recipe = None,
    json: Json = False,
) -> int:
    """Draft for `specc serve --draft-socket PATH`, in a process and on cores of its own.

    ARTIFACT is a smaller model with the same tokenizer, compiled with any method. Drafts are what it
    would say itself; SIGTERM and Ctrl-C end it, and whoever asked it goes on without.

    Example: specc draft-service small.specc --socket /run/specc/drafts --cores 2-3

    Args:
        artifact: Directory that `specc compile` made.
        socket: Path of a Unix socket to listen on, which only this user may connect to; or
            grpc://HOST:PORT, where port 0 takes a free one.
        tls: Folder with ca.pem, cert.pem and key.pem, for gRPC: clients must show a certificate that ca
            signed. Needed beyond this machine.
        cores: CPUs to run on, as 0-3 or 0,2,5; left out, those of this process.
        min_cores: Give up cores that others want, down to so many; left out, none is given up.
        busy: Part of the cores' time, above 0 to 1, beyond which there are none to spare.
        max_texts: Most texts that hold state; the one asked for longest ago makes room. Fewer, if they
            would take more than half of the memory that is available.
        threads: Threads; 0 takes the physical cores this process may use.
        recipe: TOML file with flags for this verb; what the command line says comes first.
        json: Print one JSON object on stdout when ready.
    """
    del recipe  # (read before this was called)
    flags.at_least("--max-texts", max_texts, 1)
    if not 0 < busy <= 1:
        raise flags.bad_value("--busy", "above 0, at most 1", busy)
    if cores is not None:
        os.sched_setaffinity(0, flags.cores("--cores", cores))
    flags.threads(threads)
    address = draft_address.read(socket, tls)
    each, free = max(1, Manifest.read(artifact).state_bytes), available_memory()
    texts = max_texts if free is None else max(1, min(max_texts, free // 2 // each))
    with open_compiled(artifact, threads) as engine:
        service = DraftService(engine, texts)
        if min_cores is not None:
            if not 1 <= min_cores <= engine.threads:
                raise flags.bad_value(
                    "--min-cores", f"1 to {engine.threads}, its threads", min_cores
                )
            controller = CoreController(engine.threads, min_cores, busy)
            follow(controller, Meter(os.sched_getaffinity(0)), engine.use_threads)
        with closing(listen(address)) as listening:
            if json:
                told = {"socket": str(listening.address), "pid": os.getpid(), "texts": texts}
                output.emit(told)
            output.say(
                f"{engine.manifest.name} drafts at {listening.address}: {texts} texts of {human_bytes(each)}, "
                f"{engine.threads} threads"
            )
            try:
                listening.serve(service)
            except KeyboardInterrupt:
                output.say("stopped")
    return output.EXIT_OK
