"""Run BenchFlow's commands inside a sandbox: as root, from `/`, with typed errors."""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from benchflow_contracts import EnvironmentError_, ExecResult, Sandbox
from pydantic import TypeAdapter, ValidationError

# Makes modules of the texts on stdin, in order, then runs the last one. Its request comes
# the same way: the agent can read the arguments of every process.
_BOOT = """
import json, sys, types
sys.modules["in_sandbox"] = types.ModuleType("in_sandbox")
request, texts = json.load(sys.stdin)
sys.argv[1:] = [request]
for name, text in texts.items():
    module = types.ModuleType("in_sandbox." + name)
    module.__package__ = "in_sandbox"
    sys.modules[module.__name__] = module
    exec(compile(text, name + ".py", "exec"), module.__dict__)
module.main()
"""

_FIND = """
for tool in python3 sqlite3 curl bash; do
  command -v "$tool" >/dev/null 2>&1 && echo "$tool"
done
python3 -IS -c 'import sqlite3' >/dev/null 2>&1 && echo python3-sqlite
exit 0
"""

_TAIL = 2000
_ANSWER = TypeAdapter(dict[str, str])


class SandboxShell:
    """Runs commands in the sandbox of an environment."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.agent_ids: str | None = None
        """The output of `id` for the agent's user; `None` before its first use."""
        self._tools: frozenset[str] | None = None

    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        timeout: float = 60,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a command; a non-zero exit is a result. The locale is C."""
        return await self.sandbox.exec(
            cmd,
            user="root",
            cwd="/",
            timeout=timeout,
            stdin=stdin,
            env={"LC_ALL": "C", **(env or {})},
        )

    async def must(self, cmd: str | Sequence[str], *, what: str, timeout: float = 60) -> str:
        """Run a command that must succeed; return its output.

        Raises:
            EnvironmentError_: The command failed. The message has the end of its output.
        """
        result = await self.run(cmd, timeout=timeout)
        if not result.ok:
            raise EnvironmentError_(f"{what} failed: {tail_of(result)}")
        return result.stdout

    async def tools(self) -> frozenset[str]:
        """Return the usable programs that the sandbox has. The result is cached."""
        if self._tools is None:
            output = await self.must(["sh", "-c", _FIND], what="looking for tools in the sandbox")
            self._tools = frozenset(output.split())
        return self._tools

    def use_results(self, tools: Iterable[str], agent_ids: str | None) -> None:
        """Use the results of another world in the same image."""
        self._tools = frozenset(tools)
        self.agent_ids = agent_ids

    async def python(
        self, modules: Sequence[str], request: Mapping[str, Any], *, timeout: float
    ) -> Mapping[str, str]:
        """Run a program of `in_sandbox` with the sandbox's Python; return its JSON result.

        Raises:
            EnvironmentError_: The program crashed, or its output is not a JSON result.
        """
        folder = files("benchflow_env_manifest").joinpath("in_sandbox")
        texts = {name: folder.joinpath(f"{name}.py").read_text("utf-8") for name in modules}
        stdin = json.dumps([json.dumps(request), texts]).encode()
        result = await self.run(["python3", "-IS", "-c", _BOOT], timeout=timeout, stdin=stdin)
        if not result.ok:
            raise EnvironmentError_(f"{modules[-1]} crashed in the sandbox: {tail_of(result)}")
        try:
            return _ANSWER.validate_json(result.stdout)
        except ValidationError:
            raise EnvironmentError_(
                f"{modules[-1]} printed no result in the sandbox: {tail_of(result)}"
            ) from None


def tail_of(result: ExecResult) -> str:
    """Return the exit code and the end of a command's output."""
    output = (result.stderr.strip() or result.stdout.strip())[-_TAIL:]
    return f"exit code {result.exit_code}: {output}" if output else f"exit code {result.exit_code}"
