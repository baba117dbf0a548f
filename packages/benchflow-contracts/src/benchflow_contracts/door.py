"""Endpoints, which the host reaches, and doors, through which a sandbox reaches the outside."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from ._model import Model
from .errors import UsageError

MODEL_DOOR = "model"
"""The name of the door that leads to the agent's model."""

DoorPath = Literal["socket", "tunnel", "egress", "token"]
"""How a door leads out.

`socket`: the host serves a listener inside. `tunnel`: a process inside forwards connections to the
host. `egress`: the provider's own proxy adds the headers. `token`: headers cannot be added outside,
so the sandbox has a token that is valid for this upstream only.
"""

OutsidePath = Literal["egress", "token"]
"""The paths on which a process inside requests the outside address itself."""

DoorServes = Literal["model", "tools", "http"]
"""The requests that pass a door.

`model`: those of model APIs. `tools`: those of a tool server (MCP) at `/mcp`. `http`: all requests;
such a door does not have headers, because its upstream could reveal them to the inside.
"""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def _check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    # Messages do not quote the value, because it may be a credential.
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not the name of an HTTP header")
        if not _VALUE.fullmatch(value):
            raise UsageError(
                f"the value of header {name!r} has a line break or another character that HTTP"
                " does not allow",
                hint="correct the variable of this value; it may end with a line break",
            )
    return headers


_Headers = Annotated[Mapping[str, str], AfterValidator(_check_headers)]


class Endpoint(Model):
    """An address that the host reaches, with the headers of each request."""

    url: str
    """A base URL. Its path is a prefix. For a TCP service, it is also `http://HOST:PORT`."""
    headers: _Headers = Field(default={}, repr=False)
    """Hidden in `repr`, so that messages do not show a credential."""
    expires_at: float | None = None
    """The end of validity, in seconds since the epoch; `None`: valid until teardown."""

    @property
    def host(self) -> str:
        """The host of the URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def bearer(self) -> str | None:
        """The token in the header `Authorization`, if there is one."""
        lower = {name.lower(): value for name, value in self.headers.items()}
        kind, _, token = lower.get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" and token else None

    @property
    def port(self) -> int:
        """The port of the URL, or the default port of its scheme."""
        url = urlsplit(self.url)
        return url.port or (443 if url.scheme == "https" else 80)


class Door(Model):
    """One outside address that a sandbox may reach, at `http://127.0.0.1:{port}` inside.

    `headers` are added outside, so that credentials never enter the sandbox.
    """

    name: str = Field(default=MODEL_DOOR, pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Unique in its sandbox."""
    upstream: str
    """An `http://` or `https://` base URL. Its path is put before the path of each request."""
    port: int = Field(default=8721, gt=0, lt=65536)
    """Unique in its sandbox."""
    headers: _Headers = Field(default={}, repr=False)
    serves: DoorServes = "model"
    path: OutsidePath | None = None
    """`None`: the provider serves the door inside, by `SandboxCapabilities.doors`. Otherwise
    nothing is served at `port`: see `inside`."""
    placeholder: str | None = None
    """What a process inside sends as its bearer token, for a provider that replaces this text by
    the door's token outside. For the path `egress` only."""

    @model_validator(mode="after")
    def _check_serves(self) -> Self:
        if self.serves == "http" and self.headers:
            raise UsageError(
                f"the door {self.name!r} serves 'http' and has headers {sorted(self.headers)}",
                hint="serve 'model' or 'tools', or remove the headers",
            )
        return self

    @classmethod
    def to(
        cls,
        endpoint: Endpoint,
        *,
        name: str = MODEL_DOOR,
        port: int = 8721,
        serves: DoorServes = "model",
        path: OutsidePath | None = None,
    ) -> Self:
        """Return a door to an endpoint."""
        return cls(
            name=name,
            upstream=endpoint.url,
            port=port,
            headers=endpoint.headers,
            serves=serves,
            path=path,
        )

    @property
    def endpoint(self) -> Endpoint:
        """The outside address."""
        return Endpoint(url=self.upstream, headers=self.headers)

    @property
    def inside(self) -> Endpoint:
        """The address for a process inside, with the headers that the process must send itself."""
        if self.path is None:
            return Endpoint(url=f"http://127.0.0.1:{self.port}")
        headers: Mapping[str, str] = self.headers if self.path == "token" else {}
        if self.path == "egress" and self.placeholder is not None:
            headers = {"Authorization": f"Bearer {self.placeholder}"}
        return Endpoint(url=self.upstream, headers=headers)
