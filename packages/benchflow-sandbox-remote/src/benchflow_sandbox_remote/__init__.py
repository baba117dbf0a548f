"""Sandboxes on other machines, through one link that survives cut connections."""

from .cloud import Cloud, CloudRecord, CloudSandbox, start_link
from .provider import RemoteProvider
from .records import LinkProtocolError
from .sandbox import RemoteSandbox
from .transport import PROGRAM, Dial, LineTransport, ProcessTransport, Transport

__all__ = [
    "PROGRAM",
    "Cloud",
    "CloudRecord",
    "CloudSandbox",
    "Dial",
    "LineTransport",
    "LinkProtocolError",
    "ProcessTransport",
    "RemoteProvider",
    "RemoteSandbox",
    "Transport",
    "start_link",
]
