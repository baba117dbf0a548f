"""The agent `script` of run_with_harbor.py, for our own rollouts."""

from benchflow_agent_acp.nop import NopAgent
from benchflow_agent_acp.plain_session import PlainSession
from benchflow_contracts import AgentExitError, AgentTimeoutError, SandboxTimeoutError


class ScriptSession(PlainSession):
    """Does to the letter what it is told."""

    def __init__(self, sandbox, role, steps_before):
        super().__init__("script", role, sandbox.spec.workdir, steps_before=steps_before)
        self._sandbox = sandbox

    async def act(self, step):
        try:
            done = await self._sandbox.exec(
                ["sh", "-c", step.prompt], env=self._role.env, timeout=self._role.timeout_sec
            )
        except SandboxTimeoutError as error:
            self.finish(step)
            raise AgentTimeoutError(str(error)) from error
        if not done.ok:
            self.finish(step)
            raise AgentExitError(f"exit code {done.exit_code}: {done.stderr}")
        return step


class ScriptAgent(NopAgent):
    """Connects without a process, as `nop` does."""

    name = "script"

    async def connect(self, sandbox, role, *, resume=None, log_dir=None):
        return ScriptSession(sandbox, role, resume.steps if resume else 0)


SCRIPT = ScriptAgent()
