"""CommandAgent: a program that takes one prompt, works, and ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchflow_contracts import (
    AgentError,
    AgentExitError,
    AgentTimeoutError,
    Role,
    Sandbox,
    SandboxTimeoutError,
    SessionSnapshot,
    SessionState,
    Step,
)
from benchflow_contracts.scratch import scratch_directory

from .agent import DeclaredAgent
from .call_steps import steps_of_calls
from .launch import Launcher
from .limits import WireLimits, cap_text
from .plain_session import PlainSession
from .render import render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchflow_contracts import ModelCall
    from benchflow_contracts.step import StopReason

    from .declaration import AgentDecl
    from .render import Values

PROMPT = "{prompt}"
PROMPT_FILE = "{prompt_file}"
MAX_ARGUMENT = 128 * 1024 - 1
"""Bytes. Linux refuses a longer single argument (MAX_ARG_STRLEN)."""
_TAIL = 1000


class CommandAgent(DeclaredAgent):
    """An agent whose declaration has `[command]`: one run of its program is one prompt turn.

    The program runs as the sandbox's user. Its recorded model calls become the steps of the turn,
    which are reported when the program has ended. The agent asks no questions.
    """

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> CommandSession:
        """Put the agent's files into `sandbox`. The program starts at the first prompt.

        Raises:
            AgentError: A template needs a missing value, or a file cannot be written.
        """
        from .install import install  # noqa: PLC0415 - a list of agents installs none

        installation = await install(self.decl)
        launcher = Launcher(self.decl, sandbox, role)
        env = await launcher.prepare(installation)
        assert launcher.values is not None
        session = CommandSession(
            self.decl,
            sandbox,
            role,
            launcher.values,
            env=env,
            log_dir=log_dir,
            steps_before=resume.steps if resume else 0,
        )
        session.has_history = resume is not None
        return session

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> CommandSession:
        """Raise: no process of the agent lives between two turns.

        Raises:
            AgentError: Always.
        """
        del sandbox, role, log_dir
        raise AgentError(f"agent {state.agent!r} has no process in this sandbox")


class CommandSession(PlainSession):
    """Runs the program once for each prompt."""

    def __init__(
        self,
        decl: AgentDecl,
        sandbox: Sandbox,
        role: Role,
        values: Values,
        *,
        env: Mapping[str, str],
        log_dir: Path | None,
        steps_before: int = 0,
    ) -> None:
        super().__init__(decl.id, role, sandbox.spec.workdir, steps_before=steps_before)
        self._decl = decl
        self._sandbox = sandbox
        self._values = values
        self._env = env
        self._log_dir = log_dir
        self._calls: Callable[[], Sequence[ModelCall]] = tuple
        self._turns = 0
        self.has_history = False
        """Whether the session's files in the sandbox hold an earlier turn."""

    def read_calls_from(self, source: Callable[[], Sequence[ModelCall]]) -> None:
        """Make the steps of the next turn from the calls that `source` returns at its end."""
        self._calls = source

    async def prompt(self, text: str) -> StopReason:
        """Run the program on `text`; report its steps.

        Raises:
            AgentTimeoutError: The program did not end in time. Its steps are reported.
            AgentExitError: The program ended with a non-zero exit code. Its steps are reported.
            AgentError: The prompt is too long, or the agent cannot continue an earlier turn.
        """
        self._check_open()
        command, stdin = await self._command(text)
        self._turns += 1
        started = round(time.time(), 6)
        timeout = self._role.timeout_sec
        try:
            result = await self._sandbox.exec(command, env=self._env, stdin=stdin, timeout=timeout)
        except SandboxTimeoutError as error:
            self._report(started, stopped=False)
            raise AgentTimeoutError(
                f"agent {self._agent!r} did not end within {timeout:g} s"
            ) from error
        finally:
            self.has_history = True
        self._write_log(result.stdout, result.stderr)
        if not result.ok:
            self._report(started, stopped=False)
            tail = (result.stderr or result.stdout).strip()[-_TAIL:]
            raise AgentExitError(
                f"agent {self._agent!r} ended with exit code {result.exit_code}: {tail}"
            )
        self._report(started, stopped=True, output=result.stdout)
        return "end_turn"

    async def act(self, step: Step) -> Step:
        """Return the step: `prompt` does the work."""
        return step

    async def snapshot(self) -> SessionSnapshot:
        """Return the paths of the session's files, for a new process in equal sandboxes.

        Raises:
            SnapshotError: The agent cannot continue a session.
        """
        self._decl.require_snapshot()
        files = tuple(render(path, self._values) for path in self._decl.session.paths)
        return (await super().snapshot()).model_copy(update={"files": files})

    async def _command(self, text: str) -> tuple[list[str], bytes]:
        parts = [self._decl.launch.cmd, *self._decl.launch.args]
        settings = self._decl.command
        assert settings is not None
        if self.has_history:
            if not settings.continue_args:
                raise AgentError(
                    f"agent {self._agent!r} cannot continue after its first turn",
                    hint="use a task with one prompt, or an agent that keeps its session",
                )
            parts += settings.continue_args
        if PROMPT in parts and len(text.encode()) > MAX_ARGUMENT:
            raise AgentError(
                f"the prompt has {len(text.encode())} bytes, and the agent takes it as one"
                f" argument of at most {MAX_ARGUMENT} bytes",
                hint=f"declare {PROMPT_FILE!r} or `stdin` if the program can read its prompt there",
            )
        given = {PROMPT: text}
        if PROMPT_FILE in parts:
            given[PROMPT_FILE] = await self._write_prompt(text)
        command = [given[part] if part in given else render(part, self._values) for part in parts]
        return command, text.encode() if settings.stdin else b""

    async def _write_prompt(self, text: str) -> str:
        remote = f"{self._values.home}/.benchflow-prompt.txt"
        with scratch_directory("agent") as scratch:
            local = scratch / "prompt"
            local.write_text(text)
            await self._sandbox.upload(local, remote, user=self._sandbox.spec.user)
        return remote

    def _report(self, started: float, *, stopped: bool, output: str = "") -> None:
        """Report the turn's steps; without a model call, one step with the program's output."""
        blank = Step(
            id=f"{self._agent}-{self._turns}",
            role=self._role.name,
            skills=self._role.skills,
            started_at=started,
            finished_at=max(started, time.time()),
        )
        steps = steps_of_calls(self._calls(), blank)
        if not steps:
            steps = [blank.model_copy(update={"message": cap_text(output)})]
        if stopped:
            steps[-1] = steps[-1].model_copy(update={"stop_reason": "end_turn"})
        for step in steps:
            self.record(step)

    def _write_log(self, stdout: str, stderr: str) -> None:
        """Write the program's output beside the record. Names and sizes are ours."""
        if self._log_dir is None:
            return
        self._log_dir.mkdir(parents=True, exist_ok=True)
        limit = WireLimits().log_stderr_bytes
        for name, text in (("stdout.txt", stdout), ("stderr.txt", stderr)):
            with (self._log_dir / name).open("a", encoding="utf-8", errors="replace") as file:
                file.write(cap_text(text, limit))
