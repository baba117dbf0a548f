"""The tool `shell`."""

import os
import shutil
import signal
import subprocess
import time

from .errors import ToolError
from .settings import Settings
from .tool import Tool, ToolResult, clip
from .wire import Json, Wire

_BUFFER_BYTES = 4 * 1024 * 1024
_POLL_SEC = 0.1
"""The interval between checks for the shell's exit. A background job may keep its pipe open."""


class Shell:
    """Runs commands as the agent's user, each in a new shell."""

    def __init__(self, wire: Wire, settings: Settings, cwd: str) -> None:
        self._wire = wire
        self._settings = settings
        self._cwd = cwd
        self._program = shutil.which("bash") or "/bin/sh"

    def tool(self) -> Tool:
        """Return the tool."""
        parameters = {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "A shell command line."},
                "timeout": {
                    "type": "number",
                    "description": f"Seconds; {self._settings.tool_timeout:g} by default, and "
                    "the most.",
                },
            },
            "required": ["command"],
        }
        description = (
            "Run a command in a new shell, in the working directory; see its output and code."
        )
        return Tool("shell", description, parameters, self._run, kind="execute")

    def _run(self, arguments: Json) -> ToolResult:
        command, seconds = arguments.get("command"), arguments.get("timeout")
        if not isinstance(command, str) or not command.strip() or "\0" in command:
            raise ToolError("`command` must be a command line")
        limit = self._settings.tool_timeout
        if isinstance(seconds, int | float) and 0 < seconds < limit:
            limit = float(seconds)
        code, output = self._execute(command, limit)
        text = clip(output.decode("utf-8", "replace"), self._settings.output_chars)
        if code is None:
            text += f"\n[ended after {limit:g} s]"
        elif code:
            text += f"\n[exit code {code}]"
        return ToolResult(
            text or "[no output]", {"exit_code": code, "output": text}, failed=bool(code)
        )

    def _execute(self, command: str, limit: float) -> tuple[int | None, bytes]:
        """Return the exit code (`None` after a timeout) and the output."""
        with subprocess.Popen(
            [self._program, "-c", command],
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child:
            ended = False
            try:
                output, ended = self._follow(child, time.monotonic() + limit)
            finally:
                if not ended:
                    os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        if not ended:
            return None, output
        return (code if code >= 0 else 128 - code), output

    def _follow(self, child: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bool]:
        """Collect output until the shell ends. Its background jobs may continue."""
        assert child.stdout is not None
        pipe = child.stdout.fileno()
        output = _OutputBuffer()
        while (left := deadline - time.monotonic()) > 0:
            # Check for the exit first: then the pipe has all output from before the exit.
            exited = child.poll() is not None
            if self._wire.wait(pipe, 0 if exited else min(left, _POLL_SEC)):
                chunk = os.read(pipe, 65536)
                if not chunk:
                    return output.bytes(), _wait_for_exit(child, deadline)
                output.add(chunk)
            elif exited:
                return output.bytes(), True
        return output.bytes(), False


def _wait_for_exit(child: "subprocess.Popen[bytes]", deadline: float) -> bool:
    try:
        child.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


class _OutputBuffer:
    """The start and the end of a stream, in bounded memory."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def add(self, chunk: bytes) -> None:
        space = _BUFFER_BYTES - len(self._head)
        self._head += chunk[: max(0, space)]
        self._tail += chunk[max(0, space) :]
        if len(self._tail) > 2 * _BUFFER_BYTES:
            self._cut += len(self._tail) - _BUFFER_BYTES
            del self._tail[:-_BUFFER_BYTES]

    def bytes(self) -> bytes:
        note = f"\n[{self._cut} bytes were cut here]\n".encode() if self._cut else b""
        return bytes(self._head) + note + bytes(self._tail)
