"""The way out of a cloud's sandboxes, over the doors of local sandboxes.

A sandbox reaches the addresses of `outside` that its network allows, at the same port of its own
loopback. A request there goes to the host of the address, with the headers as the cloud changes
them, outside of the sandbox. Clouds read TLS for that; here the way is plain HTTP.
"""

import secrets
from collections.abc import Callable, Mapping

import httpx
from benchflow_contracts.door import Door

from .http import App, Receive, Scope, Send, body_of, respond

PREFIX = "/egress/"
Headers = dict[str, str]
Rewrite = Callable[[str, Headers], Headers]
"""Returns the headers of a request to a host, as the cloud sends them."""
_OWN = {"host", "connection", "content-length", "transfer-encoding"}
_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding"}


def with_headers(headers: Headers, added: Mapping[str, str]) -> Headers:
    """Return `headers` with those of `added` in place of the ones of the same name."""
    return {**headers, **{name.lower(): value for name, value in added.items()}}


class Egress:
    """The way out of every sandbox of an account."""

    def __init__(self, outside: Mapping[str, int]) -> None:
        self.url = ""
        """The URL of the server."""
        self._outside = outside
        self._rewrites: dict[tuple[str, str], Rewrite] = {}
        """By sandbox and host."""

    def doors(self, is_allowed: Callable[[str], bool], rewrite: Rewrite) -> tuple[Door, ...]:
        """Return the doors of a new sandbox to the addresses that its network allows."""
        name = secrets.token_hex(8)
        hosts = [host for host in self._outside if is_allowed(host)]
        self._rewrites |= {(name, host): rewrite for host in hosts}
        return tuple(
            Door(
                name=f"outside-{at}",
                port=self._outside[host],
                upstream=f"{self.url}{PREFIX}{name}/{host}",
                serves="http",
            )
            for at, host in enumerate(hosts)
        )

    def beside(self, server: App) -> App:
        """Return an application that forwards requests of sandboxes, and passes others on."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            chosen = self if scope["path"].startswith(PREFIX) else server
            await chosen(scope, receive, send)

        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request of a sandbox, with its headers as the cloud changes them."""
        name, host, *rest = scope["path"].removeprefix(PREFIX).split("/")
        rewrite = self._rewrites.get((name, host))
        if rewrite is None:
            await respond(send, 403, {"message": "not allowed"})
            return
        sent = {key.decode(): value.decode("latin-1") for key, value in scope["headers"]}
        headers = rewrite(host, {key: sent[key] for key in sent if key not in _OWN})
        url = f"http://{host}:{self._outside[host]}/{'/'.join(rest)}"
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            body = await body_of(receive)
            answer = await client.request(scope["method"], url, headers=headers, content=body)
        shown = {k: v for k, v in answer.headers.items() if k not in _HOP}
        await respond(send, answer.status_code, answer.content, shown)
