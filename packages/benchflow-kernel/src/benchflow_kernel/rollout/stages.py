"""Stages: the steps of a task of several, on one line of its rollout."""

from collections.abc import Sequence

from benchflow_contracts import NodeScored, ReadinessError, SetupError, TaskStep, VerifyResult

from benchflow_kernel.faults import boundary
from benchflow_kernel.resolve import SOLUTION_DIR, Plan
from benchflow_kernel.tree import verdict_name
from benchflow_kernel.world import World, run_setup, wait_healthy

from .branch_start import BranchStart
from .journal import Journal
from .step_return import shortfall
from .verify import verify_step

_SHARED = ("/logs/verifier", "/tests")
"""What a verifier in the agent's own box leaves there."""
_HARBORS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""What Harbor takes out of the box at the end of each step."""


class Stages:
    """Makes each step ready before its first prompt, and grades it after its last one.

    A checkpoint of a turn's start is taken when the step of that turn is ready and those
    before it are graded, so that nothing of it is done again in a world made from one.
    """

    def __init__(self, plan: Plan, journal: Journal, world: World, start: BranchStart) -> None:
        self._plan = plan
        self._journal = journal
        self._world = world
        self._start = start

    async def open(self, index: int) -> None:
        """Bring in what a world that was just made lacks of the step that it begins with.

        Raises:
            BenchFlowError: Its files, a command or its healthcheck failed.
        """
        checkpoint = self._start.checkpoint
        if not self._plan.task.steps:
            return
        if checkpoint is None:
            await self._world.phases.setup(index)
            await self._make_ready(index, self._start.node)
            await self._world.set_baseline()
        elif checkpoint.from_disk:
            await self._show_solution(self._step(index))

    async def close(self, index: int, node: str) -> bool:
        """Grade a step at `node`, where it ended; return whether another one may follow.

        The agents have been ended, and the box is left for the next step.

        Raises:
            EnvironmentError_: The state at the end of the step cannot be read.
        """
        step = self._step(index)
        self._journal.phase(self._start.id, "verify")
        await verify_step(self._plan, self._journal, self._world, node, index, continues=True)
        verdict = self._journal.node(node).results.get(verdict_name(step.name))
        if verdict is not None and verdict.grading == "shared":
            await self._clear(_SHARED)
        return shortfall(step, verdict) is None

    async def enter(self, index: int, node: str) -> None:
        """Make the next step ready, after the one that ended at `node`.

        Raises:
            BenchFlowError: Its files, a command or its healthcheck failed.
        """
        self._journal.phase(self._start.id, "setup")
        step = self._step(index)
        # First, for it may end what the agent left: beside that nothing is ours.
        await self._world.phases.setup(index)
        async with self._world.ignore_changes():
            if step.verifier.protocol == "harbor":
                await self._clear(_HARBORS)
            await self._make_ready(index, node)

    async def _make_ready(self, index: int, node: str) -> None:
        """Prepare a step; when it cannot be, `node` tells which one it was."""
        step = self._step(index)
        try:
            await self._prepare(step)
        except (SetupError, ReadinessError) as error:
            # A child that has no node yet stands at its parent's, which is its siblings' too.
            if node != self._start.node or node == self._start.id:
                result = VerifyResult.unscored(str(error), error_type=type(error).__name__)
                name = verdict_name(step.name)
                self._journal.append(NodeScored, node=node, name=name, result=result)
            raise

    async def _prepare(self, step: TaskStep) -> None:
        where, files, world = f"task.toml:steps.{step.name}", step.parts.workdir_files, self._world
        if files is not None:
            await world.upload(files, world.sandbox.spec.workdir, world.sandbox.spec.user)
        await run_setup(world.sandbox, step.setup_commands, where=f"{where}.setup_commands")
        if step.healthcheck is not None:
            with boundary("sandbox"):
                check, where = step.healthcheck, f"{where}.healthcheck"
                await wait_healthy(world.sandbox, check, where=where)
        await self._show_solution(step)

    async def _show_solution(self, step: TaskStep) -> None:
        """Put the step's solution in the place of an earlier one's, if it may be seen at all."""
        if not self._plan.solution:
            return
        await self._world.run(["rm", "-rf", SOLUTION_DIR])
        if step.parts.solution is not None:
            await self._world.upload(step.parts.solution, SOLUTION_DIR)

    async def _clear(self, directories: Sequence[str]) -> None:
        """Empty directories, and leave them to everybody, as Harbor does."""
        await self._world.run(["rm", "-rf", *directories])
        await self._world.run(["mkdir", "-p", *directories])
        await self._world.run(["chmod", "777", *directories])

    def _step(self, index: int) -> TaskStep:
        return self._plan.task.steps[index]
