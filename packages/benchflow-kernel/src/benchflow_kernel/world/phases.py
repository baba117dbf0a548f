"""Moving a box from phase to phase of its task."""

from collections.abc import Awaitable, Callable

from benchflow_contracts import Sandbox, SandboxSpec, SandboxUnsupportedError, SupportsNetworkSwitch

from benchflow_kernel.faults import within

from .plan import Plan
from .reach import Reach, reach_of


class Phases:
    """What one world's box reaches, and who acts in it, at any time.

    Once an agent was there, nothing that runs comes into a phase where more is reached: all
    of it is ended before, and the files stay. So no agent, and nothing that one left, ever
    reaches more than that agent's own phase allows.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._baseline = reach_of(plan.spec)
        self._reach = self._baseline
        self._inhabited = False
        self._sandbox: Sandbox | None = None
        self._own_user = ""

    def beginning(self, spec: SandboxSpec, step: int | None) -> SandboxSpec:
        """Return the spec of the box's beginning: its setup, or within a step's agent phase.

        The latter is for a box from a checkpoint, in which an agent's processes may be.
        """
        if step is not None:
            self._reach, self._inhabited = self._plan.phases[step].agent, True
        update = {"network": self._reach.mode, "allowed_hosts": self._reach.hosts}
        return spec.model_copy(update=update)

    def take(self, sandbox: Sandbox) -> None:
        """Take the box that was made.

        Raises:
            SandboxUnsupportedError: It cannot be moved to where it has to be.
        """
        users = {step.user for step in self._plan.phases} - {None, sandbox.spec.user}
        if (users or sandbox.spec.switches) and not isinstance(sandbox, SupportsNetworkSwitch):
            raise SandboxUnsupportedError(
                "the network or the user changes between phases of the task, and this sandbox"
                " cannot change them while it runs",
                hint="--sandbox docker can",
            )
        self._sandbox, self._own_user = sandbox, sandbox.spec.user

    async def setup(self, step: int) -> None:
        """Come to where a step is made ready, by its own user."""
        await self._move(self._baseline, self._plan.phases[step].user)

    async def agent(self, step: int) -> None:
        """Come to where a step's agent may be. Nothing changes where the box is there already."""
        phases = self._plan.phases[step]
        await self._move(phases.agent, phases.user)
        self._inhabited = True

    async def after(self) -> None:
        """Come to where an agent's end is looked at: no more is reached than before."""
        narrower = self._baseline if self._baseline.within(self._reach) else self._reach
        await self._move(narrower, None)

    async def tests(self, step: int) -> None:
        """Come to where tests run in the box itself."""
        await self._move(self._plan.phases[step].tests or self._reach, None)

    async def _move(self, reach: Reach, user: str | None) -> None:
        sandbox, name = self._sandbox, user or self._own_user
        if not isinstance(sandbox, SupportsNetworkSwitch):
            return  # nothing ever changes here: `take` has seen to it
        if reach != self._reach:
            if self._inhabited and not reach.within(self._reach):
                await self._timed(self._end_all)
            await self._timed(lambda: sandbox.switch_network(reach.mode, reach.hosts))
            self._reach = reach
        if name != sandbox.spec.user:
            await self._timed(lambda: sandbox.switch_user(name))

    async def _end_all(self) -> None:
        """End every process of the box; its files stay as they are."""
        sandbox, provider = self._sandbox, self._plan.planes.provider
        assert sandbox is not None, "there is no box yet"
        image = await sandbox.snapshot("filesystem")
        try:
            await sandbox.restore(image)
        finally:
            await provider.discard(image)
        self._inhabited = False

    async def _timed(self, work: Callable[[], Awaitable[None]]) -> None:
        seconds = self._plan.config.deadlines.start
        async with within(seconds, "sandbox", "changing the network or the user"):
            await work()
