"""A server with a part of E2B's API, over local sandboxes.

It has the routes that `benchflow-sandbox-e2b` uses by E2B's SDK 2.63, and refuses all others. It
has E2B's limits that matter: a timeout for each sandbox, keys of one account, templates that must
exist, idempotency keys, pages of a list, and text streams that end with their connection.
"""

import asyncio
import json
import secrets
import tempfile
import urllib.parse
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from e2b.envd.process.process_connect import ProcessASGIApplication

from .e2b_process import ProcessService
from .http import App, Receive, Scope, Send, body_of, respond, serving

ENVD = "0.5.9"
_CREATE_KEYS = {
    "templateID",
    "timeout",
    "metadata",
    "envVars",
    "allow_internet_access",
    "autoPause",
    "autoPauseMemory",
    "autoResume",
    "network",
    "secure",
}
_MAX_SECONDS = 3600
_PAGE = 100


@dataclass
class Made:
    """One sandbox of the account."""

    id: str
    sandbox: Sandbox
    metadata: dict[str, str]
    template: str
    started: datetime
    ends: datetime
    service: ProcessService
    app: App
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    timer: asyncio.TimerHandle | None = None


class E2bServer:
    """One account. `failures` are answers for the next calls that create a sandbox."""

    def __init__(
        self, provider: SandboxProvider, *, key: str, templates: Mapping[str, SandboxSpec]
    ) -> None:
        self._provider = provider
        self._key = key
        self._templates = templates
        self.made: dict[str, Made] = {}
        self._by_key: dict[str, str] = {}
        self.failures: list[tuple[int, dict[str, str], bool]] = []
        """Status, headers, and whether the sandbox is created all the same."""
        self.creations = 0
        self.removed = asyncio.Event()
        """Set when a sandbox was deleted."""
        self._ending = set[asyncio.Task[None]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        if "e2b-sandbox-id" in headers:
            await self._envd(headers, scope, receive, send)
        elif headers.get("x-api-key") != self._key:
            await respond(send, 401, {"code": 401, "message": "invalid key"})
        elif (method, path) == ("POST", "/v2/sandboxes"):
            await self._create(headers, await body_of(receive), send)
        elif (method, path) == ("GET", "/v2/sandboxes"):
            await self._list(scope, send)
        elif method == "POST" and path.endswith("/timeout"):
            await self._set_timeout(path.split("/")[2], await body_of(receive), send)
        elif method == "DELETE" and path.startswith("/sandboxes/"):
            was_there = await self.remove(path.split("/")[2])
            await respond(send, 204 if was_there else 404, None if was_there else _NOT_FOUND)
        else:
            await respond(send, 501, {"code": 501, "message": f"{method} {path} is not served"})

    async def _create(self, headers: dict[str, str], body: bytes, send: Send) -> None:
        given = json.loads(body)
        status, more, made_anyway = self.failures.pop(0) if self.failures else (201, {}, True)
        unknown = given.keys() - _CREATE_KEYS
        if unknown:
            message = f"unknown fields: {sorted(unknown)}"
            await respond(send, 400, {"code": 400, "message": message})
            return
        if given["templateID"] not in self._templates:
            await respond(send, 404, {"code": 404, "message": "template not found"})
            return
        made = None
        if made_anyway:
            made = await self._make(given, headers.get("idempotency-key", secrets.token_hex(8)))
        if status != 201 or made is None:
            await respond(send, status, {"code": status, "message": "a failure of a test"}, more)
            return
        answer = {
            "templateID": made.template,
            "sandboxID": made.id,
            "clientID": "client",
            "envdVersion": ENVD,
            "envdAccessToken": made.token,
        }
        await respond(send, 201, answer)

    async def _make(self, given: dict[str, Any], key: str) -> Made:
        if key in self._by_key:
            return self.made[self._by_key[key]]
        self.creations += 1
        env: dict[str, str] = given.get("envVars") or {}
        own = {"user": "root", "workdir": "/", "env": env}
        template = self._templates[given["templateID"]]
        sandbox = await self._provider.create(template.model_copy(update=own))
        now = datetime.now(UTC)
        service = ProcessService(sandbox)
        name = f"i{secrets.token_hex(8)}"
        app: Any = ProcessASGIApplication(service)  # type: ignore[arg-type]
        metadata: dict[str, str] = given.get("metadata") or {}
        made = Made(name, sandbox, metadata, given["templateID"], now, now, service, app)
        self.made[name], self._by_key[key] = made, name
        self._extend(made, given.get("timeout", 300))
        return made

    def _extend(self, made: Made, seconds: float) -> None:
        if made.timer is not None:
            made.timer.cancel()
        made.ends = datetime.now(UTC) + timedelta(seconds=seconds)
        made.timer = asyncio.get_running_loop().call_later(seconds, self._expire, made.id)

    def _expire(self, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._remove_quietly(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _remove_quietly(self, name: str) -> None:
        await self.remove(name)

    async def remove(self, name: str) -> bool:
        """Delete a sandbox; return whether it existed."""
        made = self.made.pop(name, None)
        if made is None:
            return False
        if made.timer is not None:
            made.timer.cancel()
        await made.service.close()
        await made.sandbox.teardown()
        self.removed.set()
        return True

    async def _list(self, scope: Scope, send: Send) -> None:
        query = urllib.parse.parse_qs(scope["query_string"].decode())
        start = int(query.get("nextToken", ["0"])[0])
        every = sorted(self.made.values(), key=lambda each: each.started)
        page = [_listed(each) for each in every[start : start + _PAGE]]
        more = {"x-next-token": str(start + _PAGE)} if start + _PAGE < len(every) else {}
        await respond(send, 200, page, more)

    async def _set_timeout(self, name: str, body: bytes, send: Send) -> None:
        seconds = json.loads(body)["timeout"]
        if name not in self.made:
            await respond(send, 404, _NOT_FOUND)
        elif not 0 <= seconds <= _MAX_SECONDS:
            await respond(send, 400, {"code": 400, "message": "timeout is over the limit"})
        else:
            self._extend(self.made[name], seconds)
            await respond(send, 204)

    async def _envd(
        self, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request to the server inside a sandbox."""
        made = self.made.get(headers["e2b-sandbox-id"])
        if made is None:
            message = f"The sandbox {headers['e2b-sandbox-id']} was not found"
            await respond(send, 502, {"code": 502, "message": message})
        elif headers.get("x-access-token") != made.token:
            await respond(send, 401, {"code": 401, "message": "invalid token"})
        elif scope["path"] == "/health":
            await respond(send, 204)
        elif (scope["method"], scope["path"]) == ("POST", "/files"):
            await _write_file(made, headers, scope, await body_of(receive), send)
        elif scope["path"].startswith("/process.Process/"):
            await made.app(scope, receive, send)
        else:
            await respond(send, 501, {"code": 501, "message": f"{scope['path']} is not served"})


_NOT_FOUND = {"code": 404, "message": "sandbox not found"}


def _listed(made: Made) -> dict[str, Any]:
    return {
        "templateID": made.template,
        "sandboxID": made.id,
        "clientID": "client",
        "startedAt": made.started.isoformat(),
        "endAt": made.ends.isoformat(),
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 1024,
        "state": "running",
        "envdVersion": ENVD,
        "metadata": made.metadata,
    }


async def _write_file(
    made: Made, headers: dict[str, str], scope: Scope, body: bytes, send: Send
) -> None:
    query = urllib.parse.parse_qs(scope["query_string"].decode())
    path, user = query["path"][0], query.get("username", ["user"])[0]
    content = _content(headers.get("content-type", ""), body)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            await made.sandbox.upload(Path(file.name), path, user=user)
        except SandboxError as error:
            await respond(send, 400, {"code": 400, "message": str(error)})
            return
    await respond(send, 200, [{"path": path, "name": path.rpartition("/")[2], "type": "file"}])


def _content(kind: str, body: bytes) -> bytes:
    """Return the file of a multipart body, or the body itself."""
    if not kind.startswith("multipart/form-data"):
        return body
    boundary = kind.partition("boundary=")[2].strip('"').encode()
    part = body.split(b"--" + boundary)[1]
    return part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")


@asynccontextmanager
async def e2b_server(
    provider: SandboxProvider,
    *,
    key: str = "e2b_test",
    templates: Mapping[str, SandboxSpec] = MappingProxyType({"base": SandboxSpec()}),
) -> AsyncGenerator[tuple[E2bServer, str]]:
    """Serve an account over the sandboxes of `provider`; yield it and its URL.

    Each template is a spec of `provider`, such as an image.
    """
    server = E2bServer(provider, key=key, templates=templates)
    async with serving(server) as url:
        try:
            yield server, url
        finally:
            for name in list(server.made):
                await server.remove(name)
