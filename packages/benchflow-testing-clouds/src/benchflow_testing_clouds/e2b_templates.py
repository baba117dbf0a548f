"""E2B's templates over local sandboxes: names, uploads, and builds of steps.

As E2B's: a name is taken before its build has run, and a name with a tag exists once a build of the
tag is ready. A build begins as the user `user`, runs its commands in a login shell of bash, expands
ENV without the variables before it, and unpacks its uploads with the image's own `tar`. Unlike
E2B's, a build has no network, and a start command is refused.
"""

import asyncio
import json
import re
import secrets
import shlex
import tempfile
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import Sandbox, SandboxImage, SandboxProvider, SandboxSpec

from .http import Receive, Scope, Send, body_of, respond

UPLOADS = "/uploads/"
_REQUEST_KEYS = {"name", "tags", "cpuCount", "memoryMB", "minFreeDiskMb"}
_START_KEYS = {"fromImage", "fromTemplate", "steps", "force"}
_STEP_KEYS = {"type", "args", "filesHash", "force"}
_NAME = re.compile(r"[a-z0-9_-]+(:[A-Za-z0-9._-]+)?")
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_ENTRIES = 100
_UNPACKED = "/tmp"  # noqa: S108 - a directory inside
_PATH = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COPY = r"""
set -eu
entry={source} target={target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
if [ -d "$entry" ] && [ ! -L "$entry" ]; then
    chown -R {owner} "$entry"
    [ -z {mode} ] || chmod -R {mode} "$entry"
    mkdir -p "$target"
    tar -C "$entry" -c . | tar -C "$target" -x --keep-directory-symlink --no-overwrite-dir
else
    chown -h {owner} "$entry"
    [ -z {mode} ] || chmod {mode} "$entry"
    case $target in */) mkdir -p "$target" ;; *) mkdir -p "$(dirname "$target")" ;; esac
    mv "$entry" "$target"
fi
"""


class _RefusedError(Exception):
    """A request that E2B would refuse with the status 400."""


@dataclass
class Build:
    """One build of a template."""

    id: str
    template: str
    tags: tuple[str, ...]
    status: str = "waiting"
    entries: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    reason: dict[str, str] | None = None
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    image: SandboxImage | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    user: str = "user"
    workdir: str = "/home/user"
    used: datetime = field(default_factory=lambda: datetime.now(UTC))

    def log(self, message: str, level: str = "info") -> None:
        """Add lines to the log."""
        at = datetime.now(UTC).isoformat()
        lines = message.splitlines()
        self.entries += [{"timestamp": at, "message": line, "level": level} for line in lines]


class Templates:
    """The templates of one account. `images` are those of its registry, as specs of `provider`."""

    def __init__(
        self,
        provider: SandboxProvider,
        images: Mapping[str, SandboxSpec],
        bases: Mapping[str, SandboxSpec],
    ) -> None:
        self.url = ""
        """The URL of the server."""
        self.builds: list[Build] = []
        self.uploads: list[int] = []
        """The size of each upload in bytes."""
        self.failures: list[tuple[int, bool]] = []
        """A status for each of the next requests of builds, and whether the build is registered."""
        self.building, self.may_build = asyncio.Event(), asyncio.Event()
        """Set when a build has begun; builds begin their steps when this one is set."""
        self.may_build.set()
        self._provider, self._images, self._bases = provider, images, bases
        self._names: dict[str, str] = {}
        self._files = tempfile.TemporaryDirectory(prefix="benchflow-e2b-")
        self._tasks = set[asyncio.Task[None]]()

    def ready(self, name: str) -> Build | None:
        """Return the newest ready build of `name` or `name:tag`."""
        alias, _, tag = name.partition(":")
        template, wanted = self._names.get(alias, alias), tag or "default"
        found = [b for b in self.builds if b.template == template and wanted in b.tags]
        return next((b for b in reversed(found) if b.status == "ready"), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for templates."""
        method, path = scope["method"], scope["path"]
        parts = path.strip("/").split("/")
        routes: dict[tuple[str, ...], Callable[..., Awaitable[tuple[int, Any]]]] = {
            ("POST", "v3", "templates"): self._request,
            ("GET", "templates"): self._list,
            ("GET", "templates", "aliases", "*"): self._alias,
            ("GET", "templates", "*", "files", "*"): self._file,
            ("POST", "v2", "templates", "*", "builds", "*"): self._start,
            ("GET", "templates", "*", "builds", "*", "status"): self._status,
        }
        call = (method, *parts)
        for route, serve in routes.items():
            if len(route) == len(call) and all(
                r in {"*", c} for r, c in zip(route, call, strict=True)
            ):
                wild = [c for r, c in zip(route, call, strict=True) if r == "*"]
                given = [await body_of(receive)] if method == "POST" else []
                query = [scope["query_string"].decode()] if serve == self._status else []
                try:
                    status, answer = await serve(*wild, *given, *query)
                except _RefusedError as error:
                    status, answer = 400, {"code": 400, "message": str(error)}
                await respond(send, status, answer)
                return
        await respond(send, 501, {"code": 501, "message": f"{method} {path} is not served"})

    async def _request(self, body: bytes) -> tuple[int, Any]:
        given = _known(json.loads(body), _REQUEST_KEYS, "a template")
        name = given.get("name", "")
        if not _NAME.fullmatch(name):
            raise _RefusedError(f"the name {name!r} is not valid")
        status, counts = self.failures.pop(0) if self.failures else (202, True)
        build = Build(secrets.token_hex(16), "", ())
        if counts:
            build = self._register(name, given.get("tags") or [])
        if status != 202:
            return status, {"code": status, "message": "a failure of a test"}
        alias = name.partition(":")[0]
        return 202, {
            "templateID": build.template,
            "buildID": build.id,
            "public": False,
            "names": [alias],
            "aliases": [alias],
            "tags": list(build.tags),
        }

    def _register(self, name: str, tags: list[str]) -> Build:
        alias, _, tag = name.partition(":")
        template = self._names.setdefault(alias, f"t{secrets.token_hex(9)}")
        given: list[str] = [tag, *tags] if tag else tags
        names = tuple(dict.fromkeys(given)) or ("default",)
        for old in self.builds:
            if old.template == template and old.status == "waiting" and {*old.tags} & {*names}:
                old.status = "error"
        self.builds.append(Build(secrets.token_hex(16), template, names))
        return self.builds[-1]

    async def _list(self) -> tuple[int, Any]:
        return 200, [
            {
                "templateID": build.template,
                "buildID": build.id,
                "buildStatus": build.status,
                "public": False,
                "names": [f"team/{alias}"],
                "aliases": [alias],
                **dict.fromkeys(("createdAt", "updatedAt"), build.used.isoformat()),
                "lastSpawnedAt": build.used.isoformat(),
                "createdBy": None,
                **dict.fromkeys(("cpuCount", "memoryMB", "diskSizeMB", "spawnCount"), 1),
                "buildCount": 1,
                "envdVersion": "0.5.9",
            }
            for alias, template in self._names.items()
            for build in self.builds
            if build.template == template and build.status == "ready"
        ]

    def delete(self, template: str) -> bool:
        """Delete a template by its id; return whether it existed."""
        names = [name for name, each in self._names.items() if each == template]
        for name in names:
            del self._names[name]
        return bool(names)

    async def _alias(self, name: str) -> tuple[int, Any]:
        alias, colon, _ = name.partition(":")
        if alias not in self._names or (colon and self.ready(name) is None):
            return 404, {"code": 404, "message": f"template {name!r} not found"}
        return 200, {"templateID": self._names[alias], "public": False}

    async def _file(self, template: str, digest: str) -> tuple[int, Any]:
        if template not in self._names.values() or not _HASH.fullmatch(digest):
            return 404, {"code": 404, "message": "template or file not found"}
        present = self._path(digest).exists()
        return 201, {"present": present, "url": f"{self.url}{UPLOADS}{digest}"}

    def _path(self, digest: str) -> Path:
        return Path(self._files.name) / digest

    async def upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store a file, whose URL is the only credential."""
        path, size = self._path(scope["path"].removeprefix(UPLOADS)), 0
        with path.with_suffix(".part").open("wb") as file:
            more = True
            while more:
                message = await receive()
                size += file.write(message.get("body", b""))
                more = message.get("more_body", False)
        path.with_suffix(".part").rename(path)
        self.uploads.append(size)
        await respond(send, 200)

    async def _start(self, template: str, build: str, body: bytes) -> tuple[int, Any]:
        given = _known(json.loads(body), _START_KEYS, "a build")
        found = self._find(template, build)
        for step in given.get("steps", []):
            _known(step, _STEP_KEYS, "a step")
        if found is None or found.status != "waiting":
            raise _RefusedError("the build is unknown, or it has started")
        if ("fromImage" in given) == ("fromTemplate" in given):
            raise _RefusedError("exactly one of fromImage and fromTemplate is needed")
        if "fromTemplate" in given and self._parent(given) is None:
            raise _RefusedError(f"template {given['fromTemplate']!r} not found")
        found.status = "building"
        task = asyncio.get_running_loop().create_task(self._build(found, given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return 202, None

    def _find(self, template: str, build: str) -> Build | None:
        return next((b for b in self.builds if (b.template, b.id) == (template, build)), None)

    def _parent(self, given: Mapping[str, Any]) -> Build | None:
        name = given["fromTemplate"]
        if name in self._bases:
            return Build("", "", (), spec=self._bases[name])
        return self.ready(name)

    async def _status(self, template: str, build: str, query: str) -> tuple[int, Any]:
        found = self._find(template, build)
        if found is None:
            return 404, {"code": 404, "message": "build not found"}
        fields = _known(dict(urllib.parse.parse_qsl(query)), {"logsOffset", "limit"}, "a status")
        offset = int(fields.get("logsOffset", 0))
        end = offset + min(int(fields.get("limit", _MOST_ENTRIES)), _MOST_ENTRIES)
        return 200, {
            "templateID": template,
            "buildID": build,
            "status": found.status,
            "logs": [],
            "logEntries": found.entries[offset:end],
            **({"reason": found.reason} if found.reason else {}),
        }

    async def _build(self, build: Build, given: Mapping[str, Any]) -> None:
        step, sandbox = "base", None
        self.building.set()
        try:
            await self.may_build.wait()
            sandbox = await self._base(build, given)
            for number, each in enumerate(given.get("steps", []), 1):
                step = str(number)
                await self._step(build, sandbox, each)
            step = "finalize"
            build.image = await sandbox.snapshot("filesystem")
        except (SandboxError, SnapshotError, _RefusedError) as error:
            build.log(str(error), "error")
            build.reason = {"message": str(error), "step": step}
            build.status = "error"
        else:
            build.status = "ready"
        finally:
            if sandbox is not None:
                await sandbox.teardown()

    async def _base(self, build: Build, given: Mapping[str, Any]) -> Sandbox:
        parent = self._parent(given) if "fromTemplate" in given else None
        if parent is not None:
            spec, image = parent.spec, parent.image
            build.env, build.user = dict(parent.env), parent.user
        elif given["fromImage"] in self._images:
            spec, image = self._images[given["fromImage"]], None
            build.env = dict(spec.env)
        else:
            raise _RefusedError(
                f"cannot pull {given['fromImage']!r}: not in the registry of a test"
            )
        # The user `user` is created if it is missing.
        build.spec = spec.model_copy(update={"user": "user", "workdir": "/home/user", "env": {}})
        build.log(f"FROM {given.get('fromImage') or given['fromTemplate']}")
        return await self._provider.create(build.spec, image=image)

    async def _step(self, build: Build, sandbox: Sandbox, step: Mapping[str, Any]) -> None:
        kind, args = step["type"], step.get("args", [])
        build.log(f"{kind} {' '.join(args)}")
        match kind:
            case "RUN":
                await self._run(build, sandbox, args[0], args[1] if len(args) > 1 else build.user)
            case "ENV":
                for name, value in zip(args[::2], args[1::2], strict=True):
                    safe = value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
                    text = f'printf %s "{safe.replace("$(", chr(92) + "$(")}"'
                    build.env[name] = await _output(sandbox, text)
            case "USER":
                name = shlex.quote(args[0])
                await self._run(build, sandbox, f"id -u {name} || useradd -m {name}", "root")
                build.user = args[0]
            case "WORKDIR":
                make = f'mkdir -p "{args[0]}" && chown {build.user} "{args[0]}"'
                await self._run(build, sandbox, make, "root")
                build.workdir = await _output(sandbox, f'cd "{args[0]}" && printf %s "$PWD"')
            case "COPY":
                await self._copy(build, sandbox, step["filesHash"], args)
            case _:
                raise _RefusedError(f"the step {kind!r} is not served")

    async def _run(self, build: Build, sandbox: Sandbox, command: str, user: str) -> None:
        env = dict(build.env)
        if "PATH" in env:
            env["PATH"] += _PATH
        argv = ["/bin/bash", "-l", "-c", command]
        result = await sandbox.exec(argv, user=user, cwd=build.workdir, env=env)
        build.log(result.stdout + result.stderr)
        if not result.ok:
            raise _RefusedError(
                f"failed to run command {command!r}: exit status {result.exit_code}"
            )

    async def _copy(self, build: Build, sandbox: Sandbox, digest: str, args: list[str]) -> None:
        source, target, owner, mode = (*args, "", "")[:4]
        fixed = re.split(r"/?[^/]*[*?\[{]", f"{source}/", maxsplit=1)[0].rstrip("/")
        if not self._path(digest).exists():
            raise _RefusedError(f"the files of {source!r} were not uploaded")
        owner = owner or build.user
        owner = owner if ":" in owner else f"{owner}:{owner}"
        unpacked = f"{_UNPACKED}/{digest}"
        archive = f"{unpacked}.tar"
        await sandbox.upload(self._path(digest), archive)
        await _output(sandbox, f"mkdir {unpacked} && tar -xzf {archive} -C {unpacked}")
        script = _COPY.format(
            source=shlex.quote(f"{unpacked}/{fixed}"),
            target=f'"{target}"',
            owner=shlex.quote(owner),
            mode=shlex.quote(mode),
        )
        await self._run(build, sandbox, script, "root")
        await _output(sandbox, f"rm -rf {archive} {unpacked}")

    async def aclose(self) -> None:
        """End all builds, and delete the templates and uploads."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for build in self.builds:
            if build.image is not None:
                await self._provider.discard(build.image)
        self._files.cleanup()


def _known(given: dict[str, Any], keys: set[str], what: str) -> dict[str, Any]:
    if unknown := given.keys() - keys:
        raise _RefusedError(f"unknown fields of {what}: {sorted(unknown)}")
    return given


async def _output(sandbox: Sandbox, script: str) -> str:
    """Run a script of E2B's as root."""
    result = await sandbox.exec(["/bin/bash", "-c", script], user="root", cwd="/")
    if not result.ok:
        raise _RefusedError(f"{script[:80]!r}: {(result.stderr or result.stdout)[-300:]}")
    return result.stdout
