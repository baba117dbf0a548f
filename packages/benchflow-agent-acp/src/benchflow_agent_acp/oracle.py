"""The agent `oracle`, which runs the task's own solution. Every task must score it 1."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from benchflow_contracts import (
    AgentCapabilities,
    AgentError,
    AgentNeeds,
    AgentTimeoutError,
    Observation,
    Role,
    Sandbox,
    SandboxTimeoutError,
    Session,
    SessionSnapshot,
    SessionState,
    Step,
    ToolCall,
)

from .agent import AcpAgent
from .limits import cap_text
from .plain_session import PlainSession

_SCRIPT_NAME = "script.toml"
SCRIPT = f"/solution/{_SCRIPT_NAME}"
SOLVE = "/solution/solve.sh"
# Use `sh` if the image has no bash. The interpreter line of the script is ignored.
_RUN = f'if command -v bash >/dev/null; then exec bash "{SOLVE}"; else exec sh "{SOLVE}"; fi'
_CALL = "solve"


class SolveSession(PlainSession):
    """Runs solve.sh on the first prompt. Later prompts do nothing."""

    def __init__(self, sandbox: Sandbox, role: Role, *, steps_before: int = 0) -> None:
        super().__init__("oracle", role, sandbox.spec.workdir, steps_before=steps_before)
        self._sandbox = sandbox

    async def act(self, step: Step) -> Step:
        """Run the solution as the agent's user."""
        if self._steps_before or self.steps:
            return step
        command = self._role.solution_command
        if command:
            await self._sandbox.exec(["chmod", "+x", SOLVE], user="root", timeout=30)
        run = command or _RUN
        call = ToolCall(id=_CALL, title=SOLVE, kind="execute", name="bash", raw_input={"cmd": run})
        step = step.model_copy(update={"tool_calls": (call,)})
        try:
            result = await self._sandbox.exec(
                ["sh", "-c", run], timeout=self._role.timeout_sec, env=self._role.env
            )
        except SandboxTimeoutError as error:
            self.finish(step)
            raise AgentTimeoutError(
                f"{SOLVE} did not end within {self._role.timeout_sec:g} s"
            ) from error
        observation = Observation(
            tool_call_id=_CALL,
            status="completed" if result.ok else "failed",
            content=cap_text(result.stdout + result.stderr),
            raw_output={"exit_code": result.exit_code},
        )
        step = step.model_copy(update={"observations": (observation,)})
        if not result.ok and not self._role.solution_may_fail:
            self.finish(step)
            tail = (result.stderr or result.stdout).strip()[-500:]
            raise AgentError(
                f"{SOLVE} ended with exit code {result.exit_code}: {tail}",
                hint="repair the task's solution; `bench tasks check` runs it",
            )
        return step


class OracleAgent:
    """Runs `/solution/script.toml` over ACP, or else `/solution/solve.sh`."""

    name = "oracle"

    def __init__(self, scripted: Callable[[], AcpAgent]) -> None:
        """`scripted` makes the scripted agent, which few solutions need."""
        self._make_scripted = scripted

    @cached_property
    def _scripted(self) -> AcpAgent:
        return self._make_scripted()

    def capabilities(self) -> AgentCapabilities:
        """Return the scripted agent's capabilities: a solution may ask.

        Only a `script.toml` starts a process, and not every solution has it.
        """
        update = {"spawns": False, "spawning_solution": _SCRIPT_NAME, "acts_by": "script"}
        return self._scripted.capabilities().model_copy(update=update)

    async def needs(self, role: Role) -> AgentNeeds:
        """Request the task's solution, which only the oracle may read."""
        del role  # the scripted agent is copied into the sandbox, and needs no mounts
        return AgentNeeds(solution=True)

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> Session:
        """Open the session that fits the solution."""
        result = await sandbox.exec(
            ["sh", "-c", f"test -f {SCRIPT} && echo script; test -f {SOLVE} && echo solve; true"],
            timeout=30,
        )
        kinds = result.stdout.split()
        if "script" in kinds:
            scripted_role = role.model_copy(
                update={"env": {"BENCHFLOW_SCRIPT": SCRIPT, **role.env}}
            )
            return await self._scripted.connect(
                sandbox, scripted_role, resume=resume, log_dir=log_dir
            )
        if "solve" not in kinds:
            raise AgentError(
                f"the task has neither {SCRIPT} nor {SOLVE}",
                hint="give the task a solution/ directory with solve.sh or script.toml",
            )
        return SolveSession(sandbox, role, steps_before=resume.steps if resume else 0)

    async def attach(
        self,
        sandbox: Sandbox,
        role: Role,
        state: SessionState,
        *,
        log_dir: Path | None = None,
    ) -> Session:
        """Continue with the scripted agent's process. A solve.sh cannot be forked live.

        Raises:
            AgentError: The state is not of the scripted agent, or the process is missing.
        """
        return await self._scripted.attach(sandbox, role, state, log_dir=log_dir)
