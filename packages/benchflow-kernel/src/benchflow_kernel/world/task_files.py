"""The files of a task: copied into its sandbox, and the shared ones out of it."""

from pathlib import Path

from benchflow_contracts import Sandbox

from benchflow_kernel.faults import boundary, within
from benchflow_kernel.resolve import SKILLS_DIR, SOLUTION_DIR, Plan

from .task_processes import run_setup


class TaskFiles:
    """Copies the files of one plan into one sandbox. Each copy has the start deadline."""

    def __init__(self, plan: Plan, sandbox: Sandbox) -> None:
        self._plan = plan
        self._sandbox = sandbox

    async def upload(self, local: Path, remote: str, user: str = "root") -> None:
        """Copy a file or directory of the task into the sandbox."""
        seconds = self._plan.config.deadlines.start
        async with within(seconds, "sandbox", f"uploading {local.name!r}"):
            await self._sandbox.upload(local, remote, user=user)

    async def upload_task(self) -> None:
        """Upload the task's files and run its setup commands."""
        task = self._plan.task
        if task.parts.files is not None:
            await self.upload(task.parts.files, "/")
        if task.parts.workdir_files is not None:
            spec = self._sandbox.spec
            await self.upload(task.parts.workdir_files, spec.workdir, spec.user)
        await self.upload_agent()
        commands = task.config.environment.setup_commands
        await run_setup(self._sandbox, commands, where="task.toml:environment.setup_commands")

    async def upload_agent(self) -> None:
        """Upload the skills, and the solution for an agent that may see it."""
        if self._plan.skills is not None:
            await self.upload(self._plan.skills, SKILLS_DIR)
        solution = self._plan.task.parts.solution
        if self._plan.solution and solution is not None and not self._plan.task.steps:
            await self.upload(solution, SOLUTION_DIR)

    async def upload_shared(self) -> None:
        """Upload the files that earlier rollouts handed on, if there are any."""
        shared = self._plan.planes.shared_files
        if shared is not None:
            seconds = self._plan.config.deadlines.start
            async with within(seconds, "sandbox", "uploading the shared files"):
                await shared.upload(self._sandbox)

    async def save_shared(self) -> None:
        """Copy out the files for later rollouts, if there are any. See `SharedFiles.download`."""
        shared = self._plan.planes.shared_files
        if shared is not None:
            with boundary("sandbox"):
                await shared.download(self._sandbox)
