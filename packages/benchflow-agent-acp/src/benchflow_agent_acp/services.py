"""The client services for the agent: files and terminals, inside the sandbox only.

The services run as the agent's own user, so a request cannot reach more than the agent process
can reach itself.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from acp.schema import ReadTextFileRequest, WriteTextFileRequest
from benchflow_contracts import Sandbox, SandboxError, caused_outside
from pydantic import ValidationError

from .connection import INVALID_PARAMS, METHOD_NOT_FOUND, Connection
from .declaration import ClientSection
from .state import IncomingRequest
from .terminals import Terminals

_FILE_BYTES = 1024 * 1024
_TIMEOUT_SEC = 30.0
_INTERNAL = -32603

_READ = 'test -f "$1" && head -c "$2" -- "$1"'
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'

_Service = Callable[[IncomingRequest], Awaitable[Mapping[str, Any]]]


class BadRequestError(ValueError):
    """The agent's request has wrong or forbidden parameters."""


class ClientServices:
    """Serves `fs/*` and `terminal/*` if the declaration turns them on."""

    def __init__(self, sandbox: Sandbox, offered: ClientSection, connection: Connection) -> None:
        self._sandbox = sandbox
        self._connection = connection
        self.terminals = Terminals(sandbox, connection)
        self._services: dict[str, _Service] = {}
        if offered.fs:
            self._services["fs/read_text_file"] = self._read
            self._services["fs/write_text_file"] = self._write
        self._terminal = offered.terminal

    async def serve(self, request: IncomingRequest) -> None:
        """Answer one request; refuse methods that the declaration does not turn on."""
        if self._terminal and request.method.startswith("terminal/"):
            await self.terminals.serve(request)
            return
        service = self._services.get(request.method)
        if service is None:
            await self._connection.refuse(
                request.id, METHOD_NOT_FOUND, f"unknown method {request.method!r:.100}"
            )
            return
        try:
            result = await service(request)
        except (ValidationError, BadRequestError) as error:
            await self._connection.refuse(request.id, INVALID_PARAMS, f"{error!s:.300}")
        except SandboxError as error:
            if caused_outside(error):
                raise
            await self._connection.refuse(request.id, _INTERNAL, f"{error!s:.300}")
        else:
            await self._connection.reply(request, result)

    async def _read(self, request: IncomingRequest) -> Mapping[str, Any]:
        params = ReadTextFileRequest.model_validate(request.params)
        text = await self._shell(_READ, absolute(params.path), str(_FILE_BYTES + 1))
        if len(text) > _FILE_BYTES:
            raise BadRequestError(f"{params.path!r} is larger than {_FILE_BYTES} bytes")
        lines = text.splitlines(keepends=True)
        first = max(0, (params.line or 1) - 1)
        last = None if params.limit is None else first + params.limit
        return {"content": "".join(lines[first:last])}

    async def _write(self, request: IncomingRequest) -> Mapping[str, Any]:
        params = WriteTextFileRequest.model_validate(request.params)
        content = params.content.encode()
        if len(content) > _FILE_BYTES:
            raise BadRequestError(f"more than {_FILE_BYTES} bytes for {params.path!r}")
        await self._shell(_WRITE, absolute(params.path), stdin=content)
        return {}

    async def _shell(self, script: str, *args: str, stdin: bytes = b"") -> str:
        result = await self._sandbox.exec(
            ["sh", "-c", script, "sh", *args], timeout=_TIMEOUT_SEC, stdin=stdin
        )
        if not result.ok:
            raise BadRequestError(result.stderr.strip()[:300] or f"cannot access {args[0]!r}")
        return result.stdout


def absolute(path: str) -> str:
    """Return `path`. Raise if the path is relative or has a NUL byte."""
    if not path.startswith("/") or "\0" in path:
        raise BadRequestError(f"{path!r:.200} is not an absolute path")
    return path
