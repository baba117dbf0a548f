"""Sandboxes on other machines, through one link that survives cut connections."""

from .cloud import CloudSandbox, start_link
from .records import LinkProtocolError
from .sandbox import RemoteSandbox
from .transport import PROGRAM, Dial, LineTransport, ProcessTransport, Transport

__all__ = [
    "PROGRAM",
    "CloudSandbox",
    "Dial",
    "LineTransport",
    "LinkProtocolError",
    "ProcessTransport",
    "RemoteSandbox",
    "Transport",
    "start_link",
]
