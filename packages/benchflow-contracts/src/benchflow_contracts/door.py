"""Addresses: what the host reaches, and what the inside of a sandbox may reach."""

from collections.abc import Mapping
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field

from ._model import Model

MODEL_DOOR = "model"
"""The name of the door that leads to the agent's model."""

DoorPath = Literal["socket", "tunnel", "egress", "token"]
"""How a door leads out.

`socket`: the host serves a listener inside. `tunnel`: a process inside carries connections to the
host. `egress`: the provider's own proxy adds the headers. `token`: the inside has a token that is
valid for this upstream alone, because headers cannot be added outside.
"""


class Endpoint(Model):
    """An address that the host reaches, with the headers that each request needs."""

    url: str
    """A base URL; its path is a prefix. A port of a TCP service is `http://HOST:PORT` too."""
    headers: Mapping[str, str] = Field(default={}, repr=False)
    """Not in `repr`, so that no message shows a credential."""
    expires_at: float | None = None
    """Seconds since the epoch; `None`: valid until teardown."""

    @property
    def host(self) -> str:
        """The host of the URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port of the URL, or the default port of its scheme."""
        url = urlsplit(self.url)
        return url.port or (443 if url.scheme == "https" else 80)


class Door(Model):
    """One outside address that the inside may reach, at `http://127.0.0.1:{port}`.

    `headers` are added outside, so that a credential never enters the sandbox.
    """

    name: str = Field(default=MODEL_DOOR, pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Unique in its sandbox."""
    upstream: str
    """An `http://` or `https://` base URL; its path is a prefix of each request's path."""
    port: int = Field(default=8721, gt=0, lt=65536)
    """Unique in its sandbox."""
    headers: Mapping[str, str] = Field(default={}, repr=False)

    @classmethod
    def to(cls, endpoint: Endpoint, *, name: str = MODEL_DOOR, port: int = 8721) -> Self:
        """Return a door to an endpoint."""
        return cls(name=name, upstream=endpoint.url, port=port, headers=endpoint.headers)

    @property
    def endpoint(self) -> Endpoint:
        """Where the door leads."""
        return Endpoint(url=self.upstream, headers=self.headers)
