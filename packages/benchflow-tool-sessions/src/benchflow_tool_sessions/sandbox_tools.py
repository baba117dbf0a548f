"""The tools of every session: a shell and files, in the sandbox, as the agent's user."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from benchflow_contracts import (
    ExecResult,
    Role,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
    caused_outside,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .arguments import ToolError, cut
from .results import SessionLimits, ToolResult, ToolSpec

_SHELL: Final = (
    'exec 2>&1; if command -v bash >/dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi'
)
_READ: Final = 'test -f "$1" || { echo "not a file: $1" >&2; exit 1; }; head -c "$2" -- "$1"'
_WRITE: Final = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
_FILE_SEC: Final = 60.0
_MESSAGE_CHARS: Final = 500


class Tools(Protocol):
    """A set of tools in one sandbox."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools, in a fixed order."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool.

        Raises:
            ToolError: The arguments are wrong, or the tool failed.
            SandboxError: The host failed. The rollout ends without a verdict.
        """
        ...

    async def aclose(self) -> None:
        """End the processes of the tools. Idempotent."""
        ...


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Bash(_Arguments):
    command: str = Field(min_length=1, description="A shell command line.")
    timeout: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds until the command is killed."
    )


class _ReadFile(_Arguments):
    path: str = Field(min_length=1, description="Absolute, or relative to the working directory.")


class _WriteFile(_Arguments):
    path: str = Field(min_length=1, description="Absolute, or relative to the working directory.")
    content: str = Field(description="The whole content of the file.")


_MODELS: Final[Mapping[str, type[_Arguments]]] = {
    "bash": _Bash,
    "read_file": _ReadFile,
    "write_file": _WriteFile,
}
_DESCRIPTIONS: Final = {
    "bash": "Run a command in a new shell, in the working directory. Returns its output.",
    "read_file": "Read a text file.",
    "write_file": "Write a text file. Missing directories are created.",
}


def _schema(model: type[_Arguments]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.pop("title", None)
    for each in schema["properties"].values():
        each.pop("title", None)
    return schema


SPECS: Final = tuple(
    ToolSpec(name, _DESCRIPTIONS[name], _schema(model)) for name, model in _MODELS.items()
)


class SandboxTools:
    """Runs each call as a command of its own, so a sandbox needs `exec` only."""

    def __init__(self, sandbox: Sandbox, role: Role, limits: SessionLimits) -> None:
        self._sandbox = sandbox
        self._role = role
        self._limits = limits

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """`bash`, `read_file` and `write_file`."""
        return SPECS

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool; see `Tools.call`."""
        try:
            checked = _MODELS[name].model_validate(arguments)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise ToolError(f"{where}: {fault['msg']}") from error
        match checked:
            case _Bash():
                return await self._bash(checked)
            case _ReadFile():
                return await self._read(checked)
            case _WriteFile():
                return await self._write(checked)
            case _:
                raise AssertionError(name)

    async def aclose(self) -> None:
        """Do nothing: no process outlives its call, but for those that a command left."""

    async def _bash(self, call: _Bash) -> ToolResult:
        limit = min(call.timeout or self._limits.call_sec, self._limits.call_sec)
        result = await self._run([_SHELL, "bash", call.command], limit)
        text = result.stdout
        if result.stdout_dropped:
            text += f"\n[{result.stdout_dropped} more bytes]"
        text, is_cut = cut(text, self._limits.output_chars)
        if not result.ok:
            text += f"\n[exit code {result.exit_code}]"
        return ToolResult(
            text or "[no output]",
            is_error=not result.ok,
            truncated=is_cut or result.stdout_dropped > 0,
            data={"exit_code": result.exit_code},
        )

    async def _read(self, call: _ReadFile) -> ToolResult:
        most = 4 * self._limits.output_chars
        result = await self._run([_READ, "sh", call.path, str(most + 1)], _FILE_SEC)
        self._expect(result, call.path)
        is_more = len(result.stdout.encode()) > most or result.stdout_dropped > 0
        limit = self._limits.output_chars
        text = result.stdout[:limit]
        is_cut = is_more or len(result.stdout) > limit
        if is_cut:
            text += f"\n[only the first {len(text)} characters; read the rest by `bash`]"
        return ToolResult(text, truncated=is_cut)

    async def _write(self, call: _WriteFile) -> ToolResult:
        content = call.content.encode()
        result = await self._run([_WRITE, "sh", call.path], _FILE_SEC, stdin=content)
        self._expect(result, call.path)
        return ToolResult(f"wrote {len(content)} bytes")

    def _expect(self, result: ExecResult, path: str) -> None:
        if not result.ok:
            reason = result.stderr.strip()[:_MESSAGE_CHARS]
            raise ToolError(reason or f"cannot access {path!r:.200}")

    async def _run(self, script: list[str], limit: float, stdin: bytes = b"") -> ExecResult:
        if any("\0" in part for part in script):
            raise ToolError("an argument has a NUL byte")
        try:
            return await self._sandbox.exec(
                ["sh", "-c", *script], timeout=limit, env=self._role.env, stdin=stdin
            )
        except SandboxTimeoutError as error:
            raise ToolError(f"ended after {limit:g} s, without its output") from error
        except SandboxError as error:
            if caused_outside(error):
                raise
            raise ToolError(f"{error!s:.500}") from error
