"""The network and the user of a sandbox, changed from phase to phase of its task."""

from collections.abc import Awaitable, Callable

from benchflow_contracts import Sandbox, SandboxUnsupportedError, SupportsNetworkSwitch
from benchflow_contracts.pausing import pause_switch

from benchflow_kernel.faults import within
from benchflow_kernel.resolve import Plan
from benchflow_kernel.resolve.network_policy import NetworkPolicy


class Phases:
    """The current network and user of one world's sandbox.

    If an agent was in the sandbox, all processes are ended before a phase with a wider network;
    the files stay. So neither an agent nor a process that it left reaches more than the agent's
    phase allows.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._baseline = plan.first_network(None)
        self._network = self._baseline
        self._had_agent = False
        self._sandbox: Sandbox | None = None
        self._default_user = ""

    def set_sandbox(self, sandbox: Sandbox, step: int | None) -> None:
        """Set the sandbox: it starts in the setup, or in the agent's phase of `step`.

        Give `step` for a sandbox from a checkpoint, which may have processes of an agent.

        Raises:
            SandboxUnsupportedError: The sandbox cannot change its network or its user.
        """
        users = {step.user for step in self._plan.phases} - {None, sandbox.spec.user}
        if (users or sandbox.spec.switches) and not isinstance(sandbox, SupportsNetworkSwitch):
            raise SandboxUnsupportedError(
                "the network or the user changes between phases of the task, and this sandbox"
                " cannot change them while it runs",
                hint="--sandbox docker can",
            )
        self._sandbox, self._default_user = sandbox, sandbox.spec.user
        self._network, self._had_agent = self._plan.first_network(step), step is not None

    async def enter_setup(self, step: int) -> None:
        """Switch to the setup of a step: the first network, and the step's user."""
        await self._switch(self._baseline, self._plan.phases[step].user)

    async def enter_agent(self, step: int) -> None:
        """Switch to the agent's phase of a step."""
        phases = self._plan.phases[step]
        await self._switch(phases.agent, phases.user)
        self._had_agent = True

    async def leave_agent(self) -> None:
        """Switch to the phase after an agent, whose network is not wider than before."""
        narrower = self._baseline if self._baseline.within(self._network) else self._network
        await self._switch(narrower, None)

    async def enter_tests(self, step: int) -> None:
        """Switch to the phase of tests that run in the sandbox itself."""
        await self._switch(self._plan.phases[step].tests or self._network, None)

    async def _switch(self, network: NetworkPolicy, user: str | None) -> None:
        sandbox, name = self._sandbox, user or self._default_user
        is_same = network == self._network and (sandbox is None or name == sandbox.spec.user)
        if is_same or not isinstance(sandbox, SupportsNetworkSwitch):
            return  # `set_sandbox` has checked that the sandbox can change what changes.
        if network != self._network:
            if self._had_agent and not network.within(self._network):
                await self._run_in_time(self._end_all)
            await self._run_in_time(lambda: sandbox.switch_network(network.mode, network.hosts))
            self._network = network
        if name != sandbox.spec.user:
            await self._run_in_time(lambda: sandbox.switch_user(name))

    async def _end_all(self) -> None:
        """End every process of the sandbox; its files stay as they are."""
        sandbox, provider = self._sandbox, self._plan.planes.provider
        assert sandbox is not None, "set_sandbox was not called"
        async with pause_switch().uninterrupted():
            image = await sandbox.snapshot("filesystem")
            try:
                await sandbox.restore(image)
            finally:
                await provider.discard(image)
        self._had_agent = False

    async def _run_in_time(self, work: Callable[[], Awaitable[None]]) -> None:
        seconds = self._plan.config.deadlines.start
        async with within(seconds, "sandbox", "changing the network or the user"):
            await work()
