"""A draft service on a network: the conversations of `draft_service`, carried by gRPC."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from specc.draft_service import HELLO_S, MOST_CONNECTIONS, DraftService, cannot_listen
from specc.runtime.draft_address import Address, Network
from specc.runtime.draft_grpc import METHOD, OPTIONS, SERVICE, grpc, pack, unpack

_REFUSING = 4
"""Conversations beyond MOST_CONNECTIONS that are told so at once; gRPC refuses more."""


class GrpcListener:
    """With certificates, only clients that show one are let in."""

    def __init__(self, address: Network) -> None:
        """Port 0 takes a free one. Raises UsageError: SPECC-E0715, or E0726 for the certificates."""
        identity = address.identity()
        most = MOST_CONNECTIONS + _REFUSING
        self._threads = ThreadPoolExecutor(most, "specc-drafts")
        self._server = grpc.server(self._threads, options=OPTIONS, maximum_concurrent_rpcs=most)
        try:
            if identity is None:
                port = self._server.add_insecure_port(address.target)
            else:
                ca, cert, key = identity
                shown = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
                port = self._server.add_secure_port(address.target, shown)
        except RuntimeError as error:
            raise cannot_listen(address, str(error)) from error
        if not port:
            raise cannot_listen(address, "the port is taken, or the certificates cannot be used")
        self.address: Address = dataclasses.replace(address, port=port)

    def serve(self, service: DraftService) -> None:
        def talk(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with closing(service.converse(_packets(requests, context))) as said:
                yield from said

        handler = grpc.stream_stream_rpc_method_handler(talk, unpack, pack)
        named = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        self._server.add_generic_rpc_handlers((named,))
        self._server.start()
        try:
            self._server.wait_for_termination()
        finally:
            self._server.stop(None).wait()
            self._threads.shutdown()

    def close(self) -> None:
        self._server.stop(None)


def _packets(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    late = threading.Timer(HELLO_S, context.cancel)
    late.daemon = True
    late.start()
    try:
        hello = next(requests, b"")
        late.cancel()
        if hello:
            yield hello
            yield from requests
    except grpc.RpcError:
        pass  # it has gone
    finally:
        late.cancel()
