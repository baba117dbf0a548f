"""The tool `shell`."""

import os
import shutil
import signal
import subprocess
import time

from .faults import ToolError
from .settings import Settings
from .tool import Outcome, Tool, clip
from .wire import Json, Wire

_KEPT_BYTES = 4 * 1024 * 1024
_LOOK_SEC = 0.1
"""How often the end of a shell is looked for while a background job holds its output."""


class Shell:
    """Runs commands as the agent's own user, one shell each."""

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
        says = "Run a command in a new shell, in the working directory; see its output and code."
        return Tool("shell", says, parameters, self._run, kind="execute")

    def _run(self, arguments: Json) -> Outcome:
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
        return Outcome(
            text or "[no output]", {"exit_code": code, "output": text}, failed=bool(code)
        )

    def _execute(self, command: str, limit: float) -> tuple[int | None, bytes]:
        """Return the exit code, `None` when time ran out, and the output."""
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
        """Collect output until the shell ended; what it left behind may run on."""
        assert child.stdout is not None
        pipe = child.stdout.fileno()
        output = _Kept()
        while (left := deadline - time.monotonic()) > 0:
            # In this order: what a shell wrote before it ended is in the pipe by then.
            over = child.poll() is not None
            if self._wire.wait(pipe, 0 if over else min(left, _LOOK_SEC)):
                chunk = os.read(pipe, 65536)
                if not chunk:
                    return output.bytes(), _ends(child, deadline)
                output.add(chunk)
            elif over:
                return output.bytes(), True
        return output.bytes(), False


def _ends(child: "subprocess.Popen[bytes]", deadline: float) -> bool:
    try:
        child.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


class _Kept:
    """The head and the tail of a stream, in bounded memory."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def add(self, chunk: bytes) -> None:
        room = _KEPT_BYTES - len(self._head)
        self._head += chunk[: max(0, room)]
        self._tail += chunk[max(0, room) :]
        if len(self._tail) > 2 * _KEPT_BYTES:
            self._cut += len(self._tail) - _KEPT_BYTES
            del self._tail[:-_KEPT_BYTES]

    def bytes(self) -> bytes:
        note = f"\n[{self._cut} bytes were cut here]\n".encode() if self._cut else b""
        return bytes(self._head) + note + bytes(self._tail)
