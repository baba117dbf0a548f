"""The steps of a task with several steps, on one branch."""

from collections.abc import Sequence

from benchflow_contracts import NodeScored, ReadinessError, TaskStep, VerifyResult

from benchflow_kernel.errors import SetupError
from benchflow_kernel.faults import boundary
from benchflow_kernel.resolve import SOLUTION_DIR
from benchflow_kernel.rollout.step_return import shortfall
from benchflow_kernel.rollout.verify import verify_step
from benchflow_kernel.tree import verdict_name
from benchflow_kernel.world import run_setup, wait_healthy

from .progress import BranchContext

_SHARED = ("/logs/verifier", "/tests")
"""Directories that a verifier in the agent's own sandbox leaves there."""


class TaskSteps:
    """Prepares each step before its first prompt, and grades it after its last prompt.

    The checkpoint of a turn's start is taken after the step of that turn is prepared and the
    steps before it are graded. A world from such a checkpoint repeats nothing of that.
    """

    def __init__(self, branch: BranchContext) -> None:
        self._branch = branch
        self._world = branch.world

    async def open(self, index: int) -> None:
        """Prepare the first step of a new world.

        Raises:
            BenchFlowError: The step's files, a command or its healthcheck failed.
        """
        checkpoint = self._branch.start.checkpoint
        if not self._branch.plan.task.steps:
            return
        if checkpoint is None:
            await self._world.phases.enter_setup(index)
            await self._make_ready(index, self._branch.start.node)
            await self._world.set_baseline()
        elif checkpoint.from_disk:
            await self._show_solution(self._step(index))

    async def close(self, index: int, node: str) -> bool:
        """Grade a step at `node`, where it ended; return whether another step may follow.

        The agents have ended. The next step continues in the same sandbox.

        Raises:
            EnvironmentError_: The state at the end of the step cannot be read.
        """
        step, journal = self._step(index), self._branch.journal
        journal.enter_phase(self._branch.start.id, "verify")
        await verify_step(self._branch.plan, journal, self._world, node, index, continues=True)
        verdict = journal.node(node).results.get(verdict_name(step.name))
        if verdict is not None and verdict.grading == "shared":
            await self._clear(_SHARED)
        return shortfall(step, verdict) is None

    async def enter(self, index: int, node: str) -> None:
        """Prepare the next step, after the step that ended at `node`.

        Raises:
            BenchFlowError: The step's files, a command or its healthcheck failed.
        """
        self._branch.journal.enter_phase(self._branch.start.id, "setup")
        step = self._step(index)
        # First, because it may end the agent's processes: they could change our files.
        await self._world.phases.enter_setup(index)
        async with self._world.ignore_changes():
            if step.emptied_directories:
                await self._clear(step.emptied_directories)
            await self._make_ready(index, node)

    async def _make_ready(self, index: int, node: str) -> None:
        """Prepare a step; on failure, record at `node` which step failed."""
        step, start = self._step(index), self._branch.start
        try:
            await self._prepare(step)
        except (SetupError, ReadinessError) as error:
            # A child without a node of its own is at its parent's node; siblings share that node.
            if node != start.node or node == start.id:
                result = VerifyResult.unscored(str(error), error_type=type(error).__name__)
                name = verdict_name(step.name)
                self._branch.journal.append(NodeScored, node=node, name=name, result=result)
            raise

    async def _prepare(self, step: TaskStep) -> None:
        where, files, world = f"task.toml:steps.{step.name}", step.parts.workdir_files, self._world
        if files is not None:
            await world.files.upload(files, world.sandbox.spec.workdir, world.sandbox.spec.user)
        await run_setup(world.sandbox, step.setup_commands, where=f"{where}.setup_commands")
        if step.healthcheck is not None:
            with boundary("sandbox"):
                check, where = step.healthcheck, f"{where}.healthcheck"
                await wait_healthy(world.sandbox, check, where=where)
        await self._show_solution(step)

    async def _show_solution(self, step: TaskStep) -> None:
        """Replace an earlier step's solution by this step's, if the agent may see solutions."""
        if not self._branch.plan.solution:
            return
        await self._world.run(["rm", "-rf", SOLUTION_DIR])
        if step.parts.solution is not None:
            await self._world.files.upload(step.parts.solution, SOLUTION_DIR)

    async def _clear(self, directories: Sequence[str]) -> None:
        """Empty directories, and let every user write to them."""
        await self._world.run(["rm", "-rf", *directories])
        await self._world.run(["mkdir", "-p", *directories])
        await self._world.run(["chmod", "777", *directories])

    def _step(self, index: int) -> TaskStep:
        return self._branch.plan.task.steps[index]
