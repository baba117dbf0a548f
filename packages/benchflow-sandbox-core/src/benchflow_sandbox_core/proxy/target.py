"""What a client asks a forward proxy for: a strict reader of hostile bytes."""

import re
from dataclasses import dataclass
from typing import Self

from benchflow_sandbox_core.relay.head import HeadError

_HOST = r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,254}))"
_AUTHORITY = re.compile(rf"{_HOST}:([0-9]{{1,5}})")
_ABSOLUTE = re.compile(
    rf"[Hh][Tt][Tt][Pp]://({_HOST}(?::([0-9]{{1,5}}))?)(/[\x21-\x22\x24-\x7e]*)?"
)
_METHOD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HTTP = 80


@dataclass(frozen=True, slots=True)
class Target:
    """One request line.

    Source: RFC 9112, section 3.2, the authority and the absolute form.
    """

    method: str
    host: str
    """A name or an address without brackets."""
    port: int
    authority: str
    path: str
    """Empty when a tunnel is asked for."""

    @classmethod
    def of(cls, start: str) -> Self:
        """Read a request line.

        Raises:
            HeadError: It is neither a CONNECT nor an absolute `http` URI.
        """
        parts = start.split(" ")
        if len(parts) != 3 or parts[2] not in {"HTTP/1.1", "HTTP/1.0"}:
            raise HeadError("a malformed request line")
        method, target, _ = parts
        if method == "CONNECT":
            match = _AUTHORITY.fullmatch(target)
            if match is None:
                raise HeadError("CONNECT needs a host and a port")
            return cls(method, match[1] or match[2], _port(match[3]), target, "")
        match = _ABSOLUTE.fullmatch(target)
        if match is None or not _METHOD.fullmatch(method):
            raise HeadError("this is a proxy: ask for an absolute http:// URI, or CONNECT")
        port = _port(match[4]) if match[4] else _HTTP
        return cls(method, match[2] or match[3], port, match[1], match[5] or "/")


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise HeadError("a port that is none")
    return port
