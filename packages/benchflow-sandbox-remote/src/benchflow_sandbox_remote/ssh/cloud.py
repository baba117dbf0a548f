"""Another host as a cloud."""

import asyncio
import os
import re
import shlex
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, Self

from benchflow_contracts import Model
from benchflow_contracts.errors import (
    CredentialsError,
    HostError,
    SandboxError,
    SandboxUnsupportedError,
    UsageError,
)
from benchflow_contracts.sandbox import SandboxSpec
from pydantic import Field, ValidationError

from benchflow_sandbox_remote.cloud import CloudRecord
from benchflow_sandbox_remote.transport import Transport

from .messages import MAX_LINE, error_of, read_message, write_message

_OPTIONS = ("-T", "-oBatchMode=yes", "-oServerAliveInterval=15", "-oConnectTimeout=20")
_PIECE = 1 << 15
_KEPT = 500
_SHORT = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - a new directory in it
"""The path of a socket has at most 108 bytes, and $TMPDIR may be long."""
# A name that begins with a dash would be an option, and ssh may give a name to a shell.
_HOST = re.compile(r"(?!-)(?!.*@-)[\w.@:/%+\[\]-]+", re.ASCII)
_PROVIDER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_REFUSED = ("Permission denied", "Host key verification failed", "Too many authentication")
_MISSING = ("No module named", "not found", "No such file")


@cache
def _program() -> str:
    return files("benchflow_sandbox_remote.ssh").joinpath("connect_program.py").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHost:
    """How another host is reached.

    Raises:
        UsageError: A name is not one of a host or of a provider.
    """

    name: str
    """As ssh takes it: `user@host`, or a name of `~/.ssh/config`."""
    python: str = "python3"
    """The command of a Python there that has BenchFlow."""
    provider: str = "local"
    """The provider there that creates the sandboxes."""
    ssh: tuple[str, ...] = ("ssh",)

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not a host", hint="write user@host, or a name of ~/.ssh/config"
            )
        if not _PROVIDER.fullmatch(self.provider):
            raise UsageError(
                f"{self.provider!r} is not a provider",
                hint="set BENCHFLOW_REMOTE_PROVIDER to a provider there, such as local",
            )

    def command(self, control: str) -> list[str]:
        """Return the command of one connection. Connections share the session at `control`."""
        shared = ("-oControlMaster=auto", f"-oControlPath={control}/%C", "-oControlPersist=60")
        program = f"{self.python} -c {shlex.quote(_program())} {shlex.quote(self.provider)}"
        # A shell of the host is replaced, so that the end of ssh reaches the program.
        return [*self.ssh, *_OPTIONS, *shared, "--", self.name, f"exec {program}"]


class HostConnection:
    """One connection: a request and its answer. After `dial` it carries the link."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes], host: str) -> None:
        self._process, self._errors, self._host = process, errors, host

    @classmethod
    async def open(cls, host: RemoteHost, control: str) -> Self:
        """Start ssh."""
        # A file, because the shared session keeps a pipe open.
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - the connection closes it
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *host.command(control), stdin=pipe, stdout=pipe, stderr=errors, limit=MAX_LINE
            )
        except BaseException as error:
            errors.close()
            if not isinstance(error, OSError):
                raise
            raise SandboxUnsupportedError(
                f"cannot start {host.ssh[0]!r}: {error}", hint="install the client of OpenSSH"
            ) from error
        return cls(process, errors, host.name)

    async def ask(self, request: Mapping[str, Any], payload: bytes = b"") -> Any:  # noqa: ANN401
        """Send a request; return the value of its answer.

        Raises:
            CredentialsError: ssh is refused.
            SandboxUnsupportedError: The host does not have BenchFlow.
            SandboxError: The host's own error; `HostError` if it does not answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # the answer, or its absence, says why
            write_message(self._process.stdin, request)
            self._process.stdin.write(payload)
            await self._process.stdin.drain()
        answer = await read_message(self._process.stdout)
        if answer is None:
            raise await self._refusal()
        if "ok" not in answer:
            raise error_of(answer, self._host)
        return answer["ok"]

    async def _refusal(self) -> SandboxError:
        code = await self._process.wait()
        if self._errors.closed:
            return HostError(f"{self._host}: the connection was closed during a request")
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _KEPT))
        text = self._errors.read().decode(errors="replace").strip()
        message = f"{self._host}: ssh ended with {code}: {text}"
        if code == 255 and any(each in text for each in _REFUSED):
            return CredentialsError(message, hint=f"check that `ssh {self._host} true` works")
        if code not in {0, 255} and "no sandbox provider" in text:
            return SandboxUnsupportedError(
                message, hint="install the provider there, or set BENCHFLOW_REMOTE_PROVIDER"
            )
        if code not in {0, 255} and any(each in text for each in _MISSING):
            return SandboxUnsupportedError(
                message, hint="install BenchFlow there, and set BENCHFLOW_REMOTE_PYTHON"
            )
        reason = "`ssh {} true` works" if code == 255 else "`bench doctor` works on {}"
        return HostError(message, hint=f"check that {reason.format(self._host)}")

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(_PIECE)

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise `OSError` if the connection has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def aclose(self) -> None:
        """End ssh. Idempotent."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._errors.close()


class _Listed(Model):
    """One sandbox in an answer."""

    id: str
    labels: dict[str, str]
    created_at: float = Field(allow_inf_nan=False)


class SshSandbox:
    """One sandbox of another host."""

    def __init__(self, cloud: "SshCloud", name: str) -> None:
        self._cloud = cloud
        self.id = name

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside."""
        request = {"call": "put", "id": self.id, "path": path, "mode": mode, "size": len(content)}
        await self._cloud.ask(request, content)

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command to its end."""
        await self._cloud.ask({"call": "run", "id": self.id, "argv": list(argv)})

    async def dial(self) -> Transport:
        """Connect to the link inside."""
        connection = await self._cloud.connect()
        try:
            await connection.ask({"call": "dial", "id": self.id})
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def delete(self) -> None:
        """Delete the sandbox. Idempotent."""
        await self._cloud.delete(self.id)


class SshCloud:
    """The sandboxes of another host."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host
        self._control: tempfile.TemporaryDirectory[str] | None = None
        self._idle: list[HostConnection] = []

    async def connect(self) -> HostConnection:
        """Open a connection."""
        if self._control is None:
            self._control = tempfile.TemporaryDirectory(prefix="bf-ssh-", dir=_SHORT)
        return await HostConnection.open(self._host, self._control.name)

    async def ask(self, request: Mapping[str, Any], payload: bytes = b"") -> Any:  # noqa: ANN401
        """Send one request; return the value of its answer. Connections are used again."""
        connection = self._idle.pop() if self._idle else await self.connect()
        is_usable = False
        try:
            answer = await connection.ask(request, payload)
            is_usable = not payload
        finally:
            if is_usable:
                self._idle.append(connection)
            else:
                await connection.aclose()
        return answer

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> SshSandbox:
        """Create a sandbox of `spec.image` there. Doors and the allowlist go through the link."""
        plain = {
            "image": spec.image,
            "image_search": list(spec.image_search),
            "limits": spec.limits.model_dump(mode="json"),
            "network": "public" if spec.network == "public" else "none",
        }
        request = {"call": "create", "key": key, "labels": dict(labels), "lifetime": lifetime}
        return SshSandbox(self, str(await self.ask({**request, "spec": plain})))

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the sandboxes of this user there that have this label."""
        answer = await self.ask({"call": "list", "label": label})
        try:
            found = [_Listed.model_validate(each) for each in answer]
        except (TypeError, ValidationError) as error:
            raise HostError(f"{self._host.name}: not a list of sandboxes: {error}") from error
        for each in found:
            yield CloudRecord(each.id, each.labels, each.created_at)

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now, by the clock of the host."""
        await self.ask({"call": "extend", "id": sandbox, "lifetime": lifetime})

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        await self.ask({"call": "delete", "id": sandbox})

    async def aclose(self) -> None:
        """End the shared session of ssh. Idempotent."""
        while self._idle:
            await self._idle.pop().aclose()
        control, self._control = self._control, None
        if control is None:
            return
        nothing = asyncio.subprocess.DEVNULL
        path = f"-oControlPath={control.name}/%C"
        process = await asyncio.create_subprocess_exec(
            *self._host.ssh, path, "-Oexit", "--", self._host.name,
            stdin=nothing, stdout=nothing, stderr=nothing,
        )  # fmt: skip
        await process.wait()
        control.cleanup()


def host_of(environment: Mapping[str, str], name: str | None = None) -> RemoteHost | None:
    """Return the host with this name, or else the one that the variables name, if there is one.

    Raises:
        UsageError: A variable is wrong.
    """
    name = name or environment.get("BENCHFLOW_REMOTE_HOST")
    if not name:
        return None
    try:
        ssh = shlex.split(environment.get("BENCHFLOW_REMOTE_SSH") or "ssh")
    except ValueError as error:
        raise UsageError(f"BENCHFLOW_REMOTE_SSH is not a command: {error}") from error
    return RemoteHost(
        name=name,
        python=environment.get("BENCHFLOW_REMOTE_PYTHON") or "python3",
        provider=environment.get("BENCHFLOW_REMOTE_PROVIDER") or "local",
        ssh=tuple(ssh),
    )
