"""A server with a part of E2B's API, over local sandboxes.

It has the routes that `benchflow-sandbox-e2b` uses by E2B's SDK 2.63, and refuses all others. It
has E2B's limits that matter: a timeout for each sandbox, keys of one account, templates that must
exist and that are built (see `e2b_templates`), idempotency keys, pages of a list, text streams that
end with their connection, and snapshots and forks that cut every stream of a sandbox, while its
commands continue.
"""

import asyncio
import json
import re
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

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import Sandbox, SandboxImage, SandboxProvider, SandboxSpec
from e2b.envd.process.process_connect import ProcessASGIApplication

from .e2b_egress import Network
from .e2b_process import ProcessService
from .e2b_templates import UPLOADS, Templates
from .egress import Egress
from .garbage import Garbage
from .http import App, Receive, Scope, Send, body_of, respond, serving
from .stopped_processes import live_snapshot

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


_MAX_FORKS = 20
_FAILED = (SandboxError, SnapshotError)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the account, and the commands that run in it, by their pids."""

    image: SandboxImage
    spec: SandboxSpec
    source: "Made"
    commands: Mapping[int, str]


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
        self,
        provider: SandboxProvider,
        *,
        key: str,
        templates: Mapping[str, SandboxSpec],
        images: Mapping[str, SandboxSpec] = MappingProxyType({}),
        outside: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.egress = Egress(outside)
        self.garbage = Garbage()
        self._provider = provider
        self._key = key
        self._templates = templates
        self.templates = Templates(provider, images, templates)
        self.written: list[str] = []
        """The path of each file that a client wrote into a sandbox."""
        self.made: dict[str, Made] = {}
        self._by_key: dict[str, str] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.refused_snapshots: tuple[int, str] | None = None
        """Status and message for each snapshot of files only, which E2B may refuse."""
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
        if (method, path[: len(UPLOADS)]) == ("PUT", UPLOADS):
            await self.templates.upload(scope, receive, send)
        elif "e2b-sandbox-id" in headers:
            await self._envd(headers, scope, receive, send)
        elif headers.get("x-api-key") != self._key:
            await respond(send, 401, {"code": 401, "message": "invalid key"})
        elif (method, path) == ("POST", "/v2/sandboxes"):
            await self._create(headers, await body_of(receive), send)
        elif (method, path) == ("GET", "/v2/sandboxes"):
            await self._list(scope, send)
        elif method == "POST" and path.endswith("/timeout"):
            await self._set_timeout(path.split("/")[2], await body_of(receive), send)
        elif method == "POST" and path.endswith(("/snapshots", "/fork")):
            await self._copy(path, await body_of(receive), send)
        elif method == "DELETE" and path.startswith("/templates/"):
            name = path.split("/")[2]
            was_there = self.templates.delete(name) or await self.discard(name)
            await respond(send, 204 if was_there else 404, None if was_there else _NOT_FOUND)
        elif method in {"GET", "DELETE"} and re.fullmatch("/sandboxes/[^/]+", path):
            await self._one(method, path.split("/")[2], send)
        else:
            await self.templates(scope, receive, send)

    async def _one(self, method: str, name: str, send: Send) -> None:
        """Describe or delete a sandbox."""
        found = self.made.get(name)
        if found is None:
            await respond(send, 404, _NOT_FOUND)
        elif method == "GET":
            await respond(send, 200, _listed(found))
        else:
            await self.remove(name)
            await respond(send, 204)

    async def _create(self, headers: dict[str, str], body: bytes, send: Send) -> None:
        given = json.loads(body)
        status, more, made_anyway = self.failures.pop(0) if self.failures else (201, {}, True)
        unknown = given.keys() - _CREATE_KEYS
        if unknown:
            message = f"unknown fields: {sorted(unknown)}"
            await respond(send, 400, {"code": 400, "message": message})
            return
        try:
            network = Network.of(given)
        except ValueError as error:
            await respond(send, 400, {"code": 400, "message": str(error)})
            return
        name = given["templateID"]
        known = name in self._templates or name in self.snapshots
        if not known and self.templates.ready(name) is None:
            await respond(send, 404, {"code": 404, "message": "template not found"})
            return
        made = None
        try:
            if made_anyway:
                key = headers.get("idempotency-key", secrets.token_hex(8))
                made = await self._make(given, network, key)
        except _FAILED as error:
            await respond(send, 500, {"code": 500, "message": str(error)})
            return
        if status != 201 or made is None:
            await respond(send, status, {"code": status, "message": "a failure of a test"}, more)
            return
        await respond(send, 201, _created(made))

    async def _make(self, given: dict[str, Any], network: Network, key: str) -> Made:
        if key in self._by_key:
            return self.made[self._by_key[key]]
        self.creations += 1
        env: dict[str, str] = given.get("envVars") or {}
        name = given["templateID"]
        metadata: dict[str, str] = given.get("metadata") or {}
        if (snapshot := self.snapshots.get(name)) is not None:
            made = await self._child(snapshot, name, metadata)
        else:
            own: dict[str, Any] = {"user": "root", "workdir": "/", "env": env}
            if doors := self.egress.doors(network.allows, network.rewrite):
                own |= {"network": "model-only", "doors": doors}
            build = self.templates.ready(name)
            if build is not None:
                build.used = datetime.now(UTC)
                own["env"] = {**build.env, **env}
            spec = self._templates[name] if build is None else build.spec
            sandbox = await self._provider.create(
                spec.model_copy(update=own), image=None if build is None else build.image
            )
            made = self._add(sandbox, ProcessService(sandbox), name, metadata)
        self._by_key[key] = made.id
        self._extend(made, given.get("timeout", 300))
        return made

    def _add(
        self, sandbox: Sandbox, service: ProcessService, template: str, metadata: dict[str, str]
    ) -> Made:
        now = datetime.now(UTC)
        name = f"i{secrets.token_hex(8)}"
        app: Any = ProcessASGIApplication(service)  # type: ignore[arg-type]
        self.made[name] = Made(name, sandbox, metadata, template, now, now, service, app)
        return self.made[name]

    async def _child(self, snapshot: Snapshot, template: str, metadata: dict[str, str]) -> Made:
        sandbox = await self._provider.create(snapshot.spec, image=snapshot.image)
        service = await snapshot.source.service.fork(sandbox, snapshot.commands)
        return self._add(sandbox, service, template, metadata)

    async def _copy(self, path: str, body: bytes, send: Send) -> None:
        """Take a snapshot, or fork. Every stream into the sandbox is cut, as E2B does."""
        _, _, name, call = path.split("/")
        given = json.loads(body or b"{}")
        made = self.made.get(name)
        unknown = given.keys() - ({"timeout", "count"} if call == "fork" else {"name", "memory"})
        count = given.get("count", 1)
        if made is None:
            await respond(send, 404, _NOT_FOUND)
        elif unknown or not 1 <= count <= _MAX_FORKS:
            message = f"unknown fields {sorted(unknown)}, or the count {count}"
            await respond(send, 400, {"code": 400, "message": message})
        elif given.get("memory") is False and self.refused_snapshots is not None:
            status, message = self.refused_snapshots
            await respond(send, status, {"code": status, "message": message})
        else:
            try:
                snapshot = await self._snapshot(made, live=given.get("memory", True))
            except _FAILED as error:
                await respond(send, 500, {"code": 500, "message": str(error)})
                return
            if call == "fork":
                await respond(send, 201, await self._fork(snapshot, count, given.get("timeout")))
            else:
                self.snapshots[name := f"{secrets.token_hex(10)}:default"] = snapshot
                names = [given["name"]] if "name" in given else []
                await respond(send, 201, {"snapshotID": name, "names": names})

    async def _snapshot(self, made: Made, *, live: bool) -> Snapshot:
        commands = await made.service.drop()
        if not live:
            image = await made.sandbox.snapshot("filesystem")
            return Snapshot(image, made.sandbox.spec, made, {})
        image = await live_snapshot(made.sandbox)
        return Snapshot(image, made.sandbox.spec, made, commands)

    async def _fork(self, snapshot: Snapshot, count: int, timeout: int | None) -> list[Any]:
        self.creations += count
        seconds = 300 if timeout is None else timeout
        async with asyncio.TaskGroup() as group:
            forks = [group.create_task(self._forked(snapshot, seconds)) for _ in range(count)]
        await self._provider.discard(snapshot.image)
        return [fork.result() for fork in forks]

    async def _forked(self, snapshot: Snapshot, seconds: int) -> dict[str, Any]:
        source = snapshot.source
        try:
            child = await self._child(snapshot, source.template, dict(source.metadata))
        except _FAILED as error:
            return {"error": {"code": 500, "message": str(error)}}
        self._extend(child, seconds)
        return {"sandbox": _created(child)}

    async def discard(self, name: str) -> bool:
        """Delete a snapshot; return whether it existed."""
        snapshot = self.snapshots.pop(urllib.parse.unquote(name), None)
        if snapshot is not None:
            await self._provider.discard(snapshot.image)
        return snapshot is not None

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
            self.written.append(_query(scope)["path"])
            await _write_file(made, headers, scope, await body_of(receive), send)
        elif (scope["method"], scope["path"]) == ("GET", "/files"):
            await _read_file(made, scope, send)
        elif scope["path"].startswith("/process.Process/"):
            await made.app(scope, receive, send)
        else:
            await respond(send, 501, {"code": 501, "message": f"{scope['path']} is not served"})


_NOT_FOUND = {"code": 404, "message": "sandbox not found"}


def _created(made: Made) -> dict[str, Any]:
    return {
        "templateID": made.template,
        "sandboxID": made.id,
        "clientID": "client",
        "envdVersion": ENVD,
        "envdAccessToken": made.token,
    }


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
    query = _query(scope)
    path, user = query["path"], query.get("username", "user")
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


async def _read_file(made: Made, scope: Scope, send: Send) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "file"
        try:
            await made.sandbox.download(_query(scope)["path"], file)
        except SandboxError as error:
            await respond(send, 404, {"code": 404, "message": str(error)})
            return
        await respond(send, 200, file.read_bytes(), {"content-type": "application/octet-stream"})


def _query(scope: Scope) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(scope["query_string"].decode()))


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
    images: Mapping[str, SandboxSpec] = MappingProxyType({}),
    outside: Mapping[str, int] = MappingProxyType({}),
) -> AsyncGenerator[tuple[E2bServer, str]]:
    """Serve an account over the sandboxes of `provider`; yield it and its URL.

    Each template is a spec of `provider`, such as an image, and `images` are those of the registry
    from which templates are built. `outside` has the hosts, and a port of
    each, that a sandbox reaches if its network allows the host.
    """
    server = E2bServer(provider, key=key, templates=templates, images=images, outside=outside)
    async with serving(server.garbage.around(server.egress.beside(server))) as url:
        server.egress.url = server.templates.url = url
        try:
            yield server, url
        finally:
            for name in list(server.made):
                await server.remove(name)
            for name in list(server.snapshots):
                await server.discard(name)
            await server.templates.aclose()
