"""A server with a part of Daytona's API, over local sandboxes.

It has the routes that `benchflow-sandbox-daytona` uses by Daytona's SDK 0.226, and refuses all
others. It has Daytona's limits that matter: names that exist once, a lifetime for each sandbox, a
stop after 15 idle minutes by default, images that are built after the answer, a pool of CPUs for
the organization, a suspended organization, evictions, and 429 with a header for each limit.
"""

import asyncio
import json
import secrets
import urllib.parse
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec

from .daytona_preview import Previews
from .daytona_secrets import SecretStore
from .daytona_toolbox import Toolbox
from .egress import Egress, Headers
from .garbage import Garbage
from .http import Receive, Scope, Send, body_of, respond, serving

_CREATE_KEYS = {
    *("name", "snapshot", "user", "env", "labels", "public", "networkBlockAll", "kvm", "target"),
    *("cpu", "memory", "disk", "spot", "volumes", "buildInfo"),
    *("autoStopInterval", "autoPauseInterval", "autoDeleteInterval", "ttlMinutes"),
    *("secrets", "domainAllowList"),
}
_IDLE_MINUTES = 15
_PAGE = 50


@dataclass
class DaytonaAccount:
    """What an organization has and may do."""

    key: str = "dtn_test"
    snapshots: Mapping[str, SandboxSpec] = field(default_factory=lambda: {"default": SandboxSpec()})
    """The snapshots, as specs of the provider below. `default` is used without a name."""
    machines: frozenset[str] = frozenset()
    """The snapshots whose sandboxes are virtual machines."""
    images: Mapping[str, SandboxSpec] = field(default_factory=dict[str, SandboxSpec])
    """The images that can be pulled. A build of another one fails."""
    max_cpus: int = 1000
    suspended: str = ""
    """The reason why the organization may create nothing."""
    previews: bool = True
    """Whether the ports of a sandbox can be reached."""
    outside: Mapping[str, int] = field(default_factory=dict[str, int])
    """The hosts, and a port of each, that a sandbox reaches if its network allows the host."""
    minute: float = 60.0
    """The seconds of a minute, so that tests need not wait for one."""


@dataclass
class Made:
    """One sandbox of the account."""

    id: str
    name: str
    given: dict[str, Any]
    created: datetime
    url: str
    sandbox_class: str
    cpus: int
    state: str = "pending_build"
    error: str = ""
    evicted: datetime | None = None
    ends: datetime | None = None
    toolbox: Toolbox | None = None
    previews: Previews | None = None
    sandbox: Sandbox | None = None
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict[str, asyncio.TimerHandle])


class DaytonaServer:
    """One organization. `failures` are answers for the next calls that create a sandbox."""

    def __init__(self, provider: SandboxProvider, account: DaytonaAccount) -> None:
        self._provider = provider
        self.account = account
        self.egress = Egress(account.outside)
        self.garbage = Garbage()
        self.secrets = SecretStore()
        self.made: dict[str, Made] = {}
        self.gone: dict[str, Made] = {}
        """Evicted sandboxes: they can be read by their id."""
        self.failures: list[tuple[int, dict[str, str], bool]] = []
        """Status, headers, and whether the sandbox is created all the same."""
        self.creations = 0
        self.removed = asyncio.Event()
        """Set when a sandbox was deleted."""
        self._tasks = set[asyncio.Task[Any]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        parts = scope["path"].split("/")[1:]
        method = scope.get("method", "WS")
        if parts[0] == "preview" and len(parts) > 1 and method == "WS":
            await self._preview(parts[1], scope, receive, send)
        elif headers.get("authorization") != f"Bearer {self.account.key}":
            await refuse(send, 401, "Unauthorized", scope=scope)
        elif parts[0] == "toolbox" and len(parts) > 2:
            await self._toolbox(parts[1], "/".join(parts[2:]), scope, receive, send)
        elif parts[0] == "secret" and method != "WS":
            given = json.loads(await body_of(receive) or b"{}")
            query = scope["query_string"].decode()
            await respond(send, *self.secrets.answer(method, parts[1:], query, given))
        elif parts[0] != "sandbox" or method == "WS":
            await refuse(send, 404, f"Cannot {method} {scope['path']}", scope=scope)
        elif parts == ["sandbox"] and method == "POST":
            await self._create(headers["host"], await body_of(receive), send)
        elif parts == ["sandbox"] and method == "GET":
            await self._list(scope, send)
        else:
            await self._one(method, parts[1], parts[2:], send)

    async def _one(self, method: str, name: str, more: list[str], send: Send) -> None:
        made = self._find(name)
        if made is None:
            await refuse(send, 404, f"Sandbox with ID or name {name} not found")
            return
        match (method, *more):
            case ("GET",):
                await respond(send, 200, _described(made))
            case ("DELETE",):
                await self.remove(made.id)
                made.state = "destroyed"
                await respond(send, 200, _described(made))
            case ("GET", "ports", port, "preview-url") if made.previews is not None:
                url = made.url.replace("/toolbox", "/preview")
                link = {"url": f"{url}/{port}-{made.id}", "token": made.previews.token}
                await respond(send, 200, {"sandboxId": made.id, **link})
            case ("POST", "ttl", minutes):
                self._limit(made, int(minutes))
                await respond(send, 200, _described(made))
            case _:
                await refuse(send, 404, f"Cannot {method} {'/'.join(more)} of a sandbox")

    def _find(self, name: str) -> Made | None:
        every = (*self.made.values(), *self.gone.values())
        return next((made for made in every if name in {made.id, made.name}), None)

    async def _create(self, host: str, body: bytes, send: Send) -> None:
        given = json.loads(body)
        status, more, made_anyway = self.failures.pop(0) if self.failures else (200, {}, True)
        if (refusal := self._refusal(given)) is not None:
            await refuse(send, *refusal)
            return
        made = await self._make(host, given) if made_anyway else None
        if status != 200 or made is None:
            await refuse(send, status, "a failure of a test", headers=more)
            return
        await respond(send, 200, _described(made))

    def _refusal(self, given: dict[str, Any]) -> tuple[int, str] | None:
        """Return the status and the message of a creation that Daytona would refuse."""
        account = self.account
        if unknown := given.keys() - _CREATE_KEYS:
            return 400, f"unknown fields: {sorted(unknown)}"
        if account.suspended:
            return 403, f"Organization is suspended: {account.suspended}"
        if self._find(given.get("name") or "") is not None:
            return 409, f"Sandbox with name {given['name']} already exists"
        if "buildInfo" in given:
            if unknown := given["buildInfo"].keys() - {"dockerfileContent", "contextHashes"}:
                return 400, f"unknown fields of buildInfo: {sorted(unknown)}"
        elif given.get("snapshot", "default") not in account.snapshots:
            return 404, f"Snapshot {given['snapshot']} not found"
        elif given.keys() & {"cpu", "memory", "disk"}:
            return 400, "Cannot specify Sandbox resources when using a snapshot"
        if sum(made.cpus for made in self.made.values()) + given.get("cpu", 1) > account.max_cpus:
            return 403, f"Total CPU limit exceeded. Maximum allowed: {account.max_cpus}."
        return self._egress_refusal(given)

    def _egress_refusal(self, given: dict[str, Any]) -> tuple[int, str] | None:
        if given.get("domainAllowList") and given.get("networkBlockAll"):
            return 400, "domainAllowList and networkBlockAll exclude each other"
        try:
            self.secrets.mount(given.get("secrets") or [])
        except LookupError as error:
            return 400, f"Secret {error} not found"
        return None

    async def _make(self, host: str, given: dict[str, Any]) -> Made:
        self.creations += 1
        identity, snapshot = secrets.token_hex(8), given.get("snapshot", "default")
        made = Made(
            identity,
            given.get("name") or identity,
            given,
            datetime.now(UTC),
            f"http://{host}/toolbox",
            "linux-vm" if snapshot in self.account.machines else "container",
            given.get("cpu", 1),
        )
        self.made[identity] = made
        self._limit(made, given.get("ttlMinutes", 0))
        start = self._start(made, given)
        if "buildInfo" in given:
            self._in_background(start)
        else:
            await start
        return made

    async def _start(self, made: Made, given: dict[str, Any]) -> None:
        template = self.account.snapshots.get(given.get("snapshot", "default"), SandboxSpec())
        if "buildInfo" in given:
            image = given["buildInfo"]["dockerfileContent"].removeprefix("FROM ").strip()
            if image not in self.account.images:
                made.state, made.error = "build_failed", f"pull access denied for {image}"
                return
            template = self.account.images[image]
        secrets = self.secrets.mount(given.get("secrets") or [])
        env: dict[str, str] = {**(given.get("env") or {}), **secrets}
        own: dict[str, Any] = {"user": "root", "workdir": "/", "env": env}
        if doors := self._doors(given, set(secrets.values())):
            own |= {"network": "model-only", "doors": doors}
        try:
            made.sandbox = await self._provider.create(template.model_copy(update=own))
        except SandboxError as error:
            made.state, made.error = "error", str(error)
            return
        made.toolbox = Toolbox(made.sandbox, given.get("user") or "daytona")
        made.previews = Previews(made.sandbox, are_allowed=self.account.previews)
        made.state = "started"
        self._touch(made)

    def _doors(self, given: dict[str, Any], placeholders: set[str]) -> tuple[Door, ...]:
        """Return the doors to the hosts that the network of a sandbox allows."""
        names: list[str] = [
            name for name in (given.get("domainAllowList") or "").split(",") if name
        ]
        is_open = not names and not given.get("networkBlockAll")

        def rewrite(host: str, headers: Headers) -> Headers:
            return self.secrets.rewrite(placeholders, host, headers)

        return self.egress.doors(lambda host: is_open or host in names, rewrite)

    def _in_background(self, work: Any) -> None:  # noqa: ANN401 - any coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _limit(self, made: Made, minutes: int) -> None:
        """Delete a sandbox after `minutes` from now, whatever it does; 0: never."""
        seconds = minutes * self.account.minute
        made.ends = datetime.now(UTC) + timedelta(seconds=seconds) if minutes else None
        self._after(made, "ttl", seconds)

    def _touch(self, made: Made) -> None:
        """Note an event. A sandbox without one for its interval is stopped, and then deleted."""
        minutes = made.given.get("autoStopInterval", _IDLE_MINUTES)
        if made.given.get("autoDeleteInterval", -1) == 0:
            self._after(made, "idle", minutes * self.account.minute)

    def _after(self, made: Made, kind: str, seconds: float) -> None:
        if (timer := made.timers.pop(kind, None)) is not None:
            timer.cancel()
        if seconds:
            loop = asyncio.get_running_loop()
            made.timers[kind] = loop.call_later(
                seconds, lambda: self._in_background(self.remove(made.id))
            )

    async def remove(self, identity: str) -> bool:
        """Delete a sandbox; return whether it existed."""
        made = self.made.pop(identity, None)
        if made is None:
            return self.gone.pop(identity, None) is not None
        for timer in made.timers.values():
            timer.cancel()
        if made.previews is not None:
            made.previews.cut()
        if made.toolbox is not None:
            await made.toolbox.aclose()
        if made.sandbox is not None:
            await made.sandbox.teardown()
        self.removed.set()
        return True

    async def evict(self, identity: str) -> None:
        """Take a sandbox away, as Daytona does with a spot sandbox."""
        made = self.made[identity]
        # A request during the removal gets this state.
        made.state, made.evicted = "destroyed", datetime.now(UTC)
        self.gone[identity] = made
        await self.remove(identity)
        made.toolbox = made.previews = None

    async def aclose(self) -> None:
        """Delete every sandbox, also those that are being built."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for identity in list(self.made):
            await self.remove(identity)

    async def _list(self, scope: Scope, send: Send) -> None:
        query = urllib.parse.parse_qs(scope["query_string"].decode())
        if unknown := query.keys() - {"labels", "cursor", "limit"}:
            await refuse(send, 400, f"unknown parameters: {sorted(unknown)}")
            return
        wanted = json.loads(query.get("labels", ["{}"])[0]).items()
        start, limit = int(query.get("cursor", ["0"])[0]), int(query.get("limit", [str(_PAGE)])[0])
        found = [
            made
            for made in sorted(self.made.values(), key=lambda each: each.created)
            if wanted <= (made.given.get("labels") or {}).items()
        ]
        page = found[start : start + limit]
        following = str(start + limit) if start + limit < len(found) else None
        items = [{k: v for k, v in _described(made).items() if k != "env"} for made in page]
        await respond(send, 200, {"items": items, "nextCursor": following})

    async def _preview(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        port, _, identity = name.partition("-")
        made = self.made.get(identity)
        if made is None or made.previews is None:
            await refuse(send, 404, "no such sandbox", scope=scope)
            return
        self._touch(made)
        await made.previews.serve(int(port), scope, receive, send)

    async def _toolbox(
        self, identity: str, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        made = self.made.get(identity)
        if made is None or made.toolbox is None:
            text = "failed to get runner info: is the Sandbox started?"
            await refuse(send, 400 if made else 404, text, scope=scope)
            return
        self._touch(made)
        await made.toolbox(path, scope, receive, send)


async def refuse(
    send: Send,
    status: int,
    message: str,
    *,
    code: str | None = None,
    source: str = "DAYTONA_API",
    headers: Mapping[str, str] = MappingProxyType({}),
    scope: Scope | None = None,
) -> None:
    """Send an error as Daytona's envelope. A WebSocket of `scope` is refused with 403."""
    if scope is not None and scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    body = {"statusCode": status, "message": message, "source": source}
    await respond(send, status, body | ({"code": code} if code else {}), dict(headers))


def _described(made: Made) -> dict[str, Any]:
    """Return the fields that an answer of Daytona always has, and those that were given."""
    given = made.given
    details: dict[str, Any] = {
        "id": made.id,
        "organizationId": "organization",
        "name": made.name,
        "user": given.get("user") or "daytona",
        "env": given.get("env") or {},
        "labels": given.get("labels") or {},
        "public": bool(given.get("public")),
        "networkBlockAll": bool(given.get("networkBlockAll")),
        "domainAllowList": given.get("domainAllowList"),
        "kvm": False,
        "target": given.get("target") or "us",
        "cpu": made.cpus,
        "gpu": 0,
        "memory": given.get("memory") or 1,
        "disk": given.get("disk") or 3,
        "state": made.state,
        "sandboxClass": made.sandbox_class,
        "createdAt": made.created.isoformat(),
        "toolboxProxyUrl": made.url,
    }
    for name, value in (
        ("errorReason", made.error),
        ("autoDestroyAt", made.ends and made.ends.isoformat()),
        ("spotEvictedAt", made.evicted and made.evicted.isoformat()),
    ):
        details |= {name: value} if value else {}
    return details


@asynccontextmanager
async def daytona_server(
    provider: SandboxProvider, account: DaytonaAccount | None = None
) -> AsyncGenerator[tuple[DaytonaServer, str]]:
    """Serve an organization over the sandboxes of `provider`; yield it and its URL."""
    server = DaytonaServer(provider, account or DaytonaAccount())
    async with serving(server.garbage.around(server.egress.beside(server))) as url:
        server.egress.url = url
        try:
            yield server, url
        finally:
            await server.aclose()
