"""Where a draft service is: the path of a Unix socket, or `grpc://HOST:PORT`, also on another machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from specc.errors import UsageError

SCHEME = "grpc://"
FILES = ("ca.pem", "cert.pem", "key.pem")
"""Of a --tls folder: who may sign the other side's certificate, this side's own, and its key."""
Identity = tuple[bytes, bytes, bytes]
"""What FILES hold."""


@dataclass(frozen=True)
class Network:
    """An address that gRPC connects to. `tls`: a folder with FILES; both sides show what `ca` signed."""

    host: str
    port: int
    tls: Path | None = None

    def __str__(self) -> str:
        return f"{SCHEME}{self.target}"

    @property
    def target(self) -> str:
        """As gRPC writes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def identity(self) -> Identity | None:
        """What the folder holds, None without one; raises UsageError (SPECC-E0726) if a file is missing."""
        if self.tls is None:
            return None
        try:
            ca, cert, key = ((self.tls / name).read_bytes() for name in FILES)
        except OSError as error:
            raise UsageError(
                "SPECC-E0726", "the certificates for a draft service cannot be read", where=str(self.tls),
                expected="a folder with " + ", ".join(FILES), found=str(error),
                cure="name the folder that has them",
            ) from error  # fmt: skip
        return ca, cert, key


Address = Path | Network


def read(text: str, tls: Path | None = None) -> Address:
    """`text` as an address.

    Raises UsageError: SPECC-E0727 if it is none, SPECC-E0726 if it leads to another machine without `tls`: texts would
    go there for anybody to read.
    """
    if not text.startswith(SCHEME):
        if tls is not None:
            raise UsageError(
                "SPECC-E0727", "certificates are for a draft service on a network, and this is a Unix socket",
                where=text, expected=f"{SCHEME}HOST:PORT", cure="leave the certificates out",
            )  # fmt: skip
        return Path(text)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if (
        not host
        or port is None
        or text not in (f"{SCHEME}{host}:{port}", f"{SCHEME}[{host}]:{port}")
    ):
        raise UsageError(
            "SPECC-E0727", "this is no address of a draft service", where=text,
            expected=f"a path, or {SCHEME}HOST:PORT", cure="correct it, as in grpc://127.0.0.1:50051",
        )  # fmt: skip
    if tls is None and not _is_this_machine(host):
        raise UsageError(
            "SPECC-E0726", "a draft service on a network needs certificates: texts go there", where=text,
            expected="a folder with " + ", ".join(FILES),
            cure="give --tls DIR to draft-service and --draft-tls DIR to serve, or stay on 127.0.0.1",
        )  # fmt: skip
    return Network(host, port, tls)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
