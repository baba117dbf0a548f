"""A World: one sandbox, its environment and the sessions in it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Literal

from benchflow_contracts import (
    BenchFlowError,
    Environment,
    EnvState,
    HasImageDigests,
    ModelCall,
    ModelRoute,
    Phase,
    ProvisionContext,
    ReadinessError,
    Sandbox,
    SandboxError,
    SandboxImage,
    SandboxSpec,
    SandboxUnsupportedError,
    SnapshotError,
    Task,
    TracksFileChanges,
    UserModel,
    caused_inside,
)

from benchflow_kernel.faults import boundary, within

from .healthcheck import wait_healthy
from .labels import labels_of
from .live import LiveWorld
from .phases import Phases
from .plan import SKILLS_DIR, SOLUTION_DIR, Plan
from .service_logs import keep_service_logs
from .sessions import CarriedSessions, Sessions
from .setup_commands import run_setup

_LOOK_SEC = 10
"""How long the sandbox of an agent that failed may take to show that it runs."""

_CALLS_REST_SEC = 60
"""How long a checkpoint waits for the model calls in flight."""


class World:
    """Where one line of the rollout runs: the root's, or a forked child's.

    `open` goes through the phases from `start` to `readiness` and reports each to
    `enter`, and to `made` what a box from its spec was made from; no agent can be connected
    before. `aclose` undoes whatever was done, in
    reverse, and may be called at any point.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        node: str,
        log_dir: Path | None,
        enter: Callable[[Phase], None],
        made: Callable[[Mapping[str, str]], None],
        carried: CarriedSessions,
    ) -> None:
        self._plan = plan
        self._node = node
        self._log_dir = log_dir
        self._enter = enter
        self._made = made
        self._environment: Environment | None = None
        self._provisioned = False
        self._spec = plan.spec
        self._sandbox: Sandbox | None = None
        self._line: ModelRoute | None = None
        self._user: UserModel | None = None
        self._leaks: list[BenchFlowError] = []
        self.phases = Phases(plan)
        self.sessions = Sessions(plan, None if log_dir is None else log_dir / "agent", carried)

    @property
    def sandbox(self) -> Sandbox:
        """The box. Only after `open` has made it."""
        assert self._sandbox is not None, "the world is not open"
        return self._sandbox

    @property
    def environment(self) -> Environment | None:
        """The world's environment, when the task has one."""
        return self._environment

    @property
    def user(self) -> UserModel:
        """The user at the other end of this world's questions."""
        assert self._user is not None, "the world is not set up"
        return self._user

    def grading_spec(self, task: Task) -> SandboxSpec:
        """Return what a fresh grading box for `task`, or for a step of it, is made of."""
        return self._plan.grading_spec(self._spec, task.config.verifier)

    @property
    def verifier_dir(self) -> Path | None:
        """The host directory for the verifier's output."""
        return None if self._log_dir is None else self._log_dir / "verifier"

    def verifier_dir_of(self, step: str) -> Path | None:
        """Return the host directory for a verifier's output on one step of the task."""
        return None if self._log_dir is None else self._log_dir / "steps" / step / "verifier"

    def setup(self) -> None:
        """Make the environment object and the user. Starts nothing."""
        factory = self._plan.planes.environment
        if factory is not None:
            with boundary("environment"):
                self._environment = factory()
                self._spec = self._environment.prepare(self._spec, task_id=self._plan.task.id)
        with boundary("environment"):
            self._user = self._plan.planes.user()

    @property
    def calls(self) -> Sequence[ModelCall]:
        """The model calls of this world so far, in the order in which they ended.

        Those answered from the record are among them. What was said is left out.
        """
        return () if self._line is None else self._line.outline()

    def calls_since(self, count: int) -> tuple[ModelCall, ...]:
        """Return all but the first `count` calls, whole, in the order in which they began."""
        if self._line is None:
            return ()
        later = {call.id for call in self._line.outline()[count:]}
        return tuple(call for call in self._line.calls() if call.id in later)

    @property
    def model_error(self) -> BenchFlowError | None:
        """Why the model line ended the agent's work, if it did."""
        return None if self._line is None else self._line.error

    @property
    def unplayed(self) -> int:
        """Recorded model calls of the agent's work that it has not asked for again."""
        return 0 if self._line is None else self._line.unplayed

    def watch_model(self, told: Callable[[BenchFlowError], None]) -> None:
        """Call `told` when the model line ends the agent's work."""
        if self._line is not None:
            self._line.watch(told)

    async def open(
        self,
        image: SandboxImage | None = None,
        *,
        live: LiveWorld | None = None,
        state: EnvState | None = None,
        replay: Sequence[ModelCall] = (),
        equip: bool = False,
        step: int = 0,
    ) -> None:
        """Start the box, from the spec or from a checkpoint, and make the world ready.

        Of a live checkpoint the services run already, and those that were held must have
        what `state` says; `replay` is what the model line answers from the record first.
        With `equip` the checkpoint is another rollout's, and what this one's agents are
        shown is brought in beside what it holds. A world from a checkpoint begins in the
        agent's phase of `step`, one from the spec in that of the setup.

        Raises:
            BenchFlowError: One phase failed or was late; `aclose` still has to be called.
        """
        deadlines = self._plan.config.deadlines
        self._enter("start")
        async with within(deadlines.start, "sandbox", "starting the sandbox"):
            await self._start(image, replay, step)
        if image is None:
            await self._furnish()
        elif equip:
            await self._equip()
        self._enter("provision")
        await self._provision(image, live, state)
        self._enter("readiness")
        await self._gate()
        await self._healthy()
        if image is not None:
            await self.phases.agent(step)
        elif not self._plan.task.steps:
            await self.set_baseline()

    async def set_baseline(self) -> None:
        """Let the sandbox tell what the agents change from what the task brought."""
        if (compared := self._compared) is not None:
            with suppress(SandboxUnsupportedError):
                async with within(self._plan.config.deadlines.start, "sandbox", "marking files"):
                    await compared.set_baseline()

    @asynccontextmanager
    async def ignore_changes(self) -> AsyncGenerator[None]:
        """Let what the task brings while it is held be no change of an agent's.

        It is one all the same where something that an agent left runs beside it: then nobody
        can say whose it is.
        """
        async with AsyncExitStack() as stack:
            if (compared := self._compared) is not None:
                with suppress(SandboxUnsupportedError):
                    await stack.enter_async_context(compared.ignore_changes())
            yield

    @property
    def _compared(self) -> TracksFileChanges | None:
        """The sandbox, if its files are compared for a verdict.

        A hermetic grader compares artifacts with its own image. Only one that has another image
        than the agent must be told what the task put there.
        """
        sandbox, task = self.sandbox, self._plan.task
        given = self._plan.config.isolation
        verifiers = [each.verifier for each in task.steps] or [task.config.verifier]
        if all(
            (given or each.isolation) == "hermetic" and each.environment is None
            for each in verifiers
        ):
            return None
        return sandbox if isinstance(sandbox, TracksFileChanges) else None

    async def upload(self, local: Path, remote: str, user: str = "root") -> None:
        """Copy a file or directory of the task's in, within the deadline of the start."""
        seconds = self._plan.config.deadlines.start
        async with within(seconds, "sandbox", f"uploading {local.name!r}"):
            await self.sandbox.upload(local, remote, user=user)

    async def run(self, command: Sequence[str]) -> None:
        """Run a command of ours as root.

        Raises:
            SandboxError: It did not exit with 0.
        """
        seconds, what = self._plan.config.deadlines.start, " ".join(command)
        async with within(seconds, "sandbox", f"running {what!r}"):
            result = await self.sandbox.exec(command, user="root", cwd="/")
        if not result.ok:
            raise SandboxError(f"{what!r} exited with {result.exit_code}: {result.stderr[-200:]}")

    async def quiesce(self) -> None:
        """Wait until the model line has no call in flight.

        Raises:
            SnapshotError: A call takes too long.
        """
        if self._line is not None and not await self._line.quiesce(_CALLS_REST_SEC):
            raise SnapshotError(
                f"{self._line.in_flight} model calls are still in flight", retryable=True
            )

    async def capture(self) -> LiveWorld:
        """Describe the services and sessions that a live image will carry, while frozen.

        Raises:
            SnapshotError: One of them cannot be carried, or not at this point.
        """
        with boundary("snapshot"):
            services: Mapping[str, str] = {}
            if self._environment is not None:
                services = await self._environment.live_services()
            return LiveWorld(services=services, sessions=await self.sessions.capture())

    async def expect_sandbox(self) -> None:
        """Raise `SandboxError` when it is the sandbox that has failed.

        An agent whose machine was taken away is not to blame for its end; one that filled it is.
        """
        try:
            await self.sandbox.exec(["true"], timeout=_LOOK_SEC)
        except SandboxError as error:
            if error.retryable or caused_inside(error):
                raise

    async def evict(self, process_ids: Sequence[str]) -> None:
        """End processes that a live image carried in and nobody goes on with."""
        seconds = self._plan.config.deadlines.connect
        async with within(seconds, "sandbox", "ending an agent that is not gone on with"):
            for process_id in process_ids:
                await (await self.sandbox.attach(process_id)).aclose()

    async def check(self, expected: EnvState | None) -> None:
        """Hold the environment against its own invariants, and against an expected state.

        Raises:
            EnvironmentError_: An invariant does not hold.
            SnapshotError: The state is not the expected one.
        """
        if self._environment is not None:
            seconds = self._plan.config.deadlines.provision
            async with within(seconds, "environment", "the environment's invariants"):
                await self._environment.check(expected)

    async def reseed(self, seed: int) -> None:
        """Give a fork's environment randomness of its own."""
        if self._environment is not None:
            seconds = self._plan.config.deadlines.provision
            async with within(seconds, "environment", "reseeding the environment"):
                await self._environment.reseed(seed)

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot of this world. What goes wrong is told by `aclose`."""
        undo = partial(self._plan.planes.provider.discard, image)
        await self._undo("sandbox", "discarding a snapshot", undo, self._leaks)

    def quiesced(self) -> AbstractAsyncContextManager[None]:
        """Keep the environment's servers from writing while held, around a freeze."""
        return nullcontext() if self._environment is None else self._environment.quiesce()

    async def query(self) -> EnvState | None:
        """Read the environment's state; `None` without an environment."""
        if self._environment is None:
            return None
        deadline = self._plan.config.deadlines.provision
        async with within(deadline, "environment", "reading the environment's state"):
            return await self._environment.query()

    async def keep_service_logs(self) -> None:
        """Keep what the services printed until now. What hinders it is no fault of the rollout."""
        if self._sandbox is None or self._log_dir is None:
            return
        seconds = self._plan.config.deadlines.teardown
        with suppress(BenchFlowError):
            async with within(seconds, "sandbox", "reading what the services printed"):
                await keep_service_logs(self._sandbox, self._log_dir / "services")

    async def aclose(self) -> list[BenchFlowError]:
        """Undo everything and return what went wrong; every layer is attempted.

        Each layer has the teardown deadline to itself, so that a hanging one cannot
        keep the ones below it alive.
        """
        errors, self._leaks = self._leaks, []
        try:
            await self.sessions.aclose()
        except BenchFlowError as error:
            errors.append(error)
        if self._user is not None:
            await self._undo("environment", "releasing the user", self._user.aclose, errors)
        if self._environment is not None and self._provisioned:
            undo = self._environment.teardown
            await self._undo("environment", "tearing down the environment", undo, errors)
        await self.keep_service_logs()
        if self._sandbox is not None:
            undo = self._sandbox.teardown
            await self._undo("sandbox", "tearing down the sandbox", undo, errors)
        if self._line is not None:
            await self._undo("sandbox", "closing the model line", self._line.aclose, errors)
        return errors

    async def _undo(
        self,
        boundary: Literal["environment", "sandbox"],
        what: str,
        undo: Callable[[], Awaitable[None]],
        errors: list[BenchFlowError],
    ) -> None:
        try:
            async with within(self._plan.config.deadlines.teardown, boundary, what):
                await undo()
        except BenchFlowError as error:
            errors.append(error)

    async def _start(
        self, image: SandboxImage | None, replay: Sequence[ModelCall], step: int
    ) -> None:
        plan = self._plan
        await self._connect_model(replay)
        spec = self.phases.beginning(self._spec, None if image is None else step)
        self._sandbox = await plan.planes.provider.create(
            spec, image=image, labels=labels_of(plan, self._node)
        )
        if image is None and isinstance(self._sandbox, HasImageDigests):
            self._made(self._sandbox.image_digests)
        self.phases.take(self._sandbox)

    async def _connect_model(self, replay: Sequence[ModelCall]) -> None:
        """Put the gateway's line of this node between the box and its model."""
        gateway, upstream = self._plan.planes.gateway, self._spec.model
        if gateway is None or upstream is None:
            return
        self._line = await gateway.open(
            self._plan.rollout_id, self._node, upstream=upstream, replay=replay
        )
        self._spec = self._spec.model_copy(update={"model": self._line.endpoint})

    async def _furnish(self) -> None:
        """Bring in the task's files and run its setup commands."""
        task = self._plan.task
        if task.parts.files is not None:
            await self.upload(task.parts.files, "/")
        if task.parts.workdir_files is not None:
            spec = self.sandbox.spec
            await self.upload(task.parts.workdir_files, spec.workdir, spec.user)
        await self._equip()
        commands = task.config.environment.setup_commands
        await run_setup(self.sandbox, commands, where="task.toml:environment.setup_commands")

    async def _equip(self) -> None:
        """Bring in what the plan's agents are shown, over what may be there."""
        if self._plan.skills is not None:
            await self.upload(self._plan.skills, SKILLS_DIR)
        solution = self._plan.task.parts.solution
        if self._plan.solution and solution is not None and not self._plan.task.steps:
            await self.upload(solution, SOLUTION_DIR)

    async def _provision(
        self, image: SandboxImage | None, live: LiveWorld | None, state: EnvState | None
    ) -> None:
        if self._environment is None:
            return
        self._provisioned = True
        context = ProvisionContext(
            sandbox=self.sandbox,
            task_id=self._plan.task.id,
            resumed=image is not None,
            live_services=None if live is None else live.services,
            state=None if live is None else state,
        )
        seconds = self._plan.config.deadlines.provision
        async with within(seconds, "environment", "provisioning the environment"):
            await self._environment.provision(context)

    async def _healthy(self) -> None:
        check = self._plan.task.config.environment.healthcheck
        if check is not None:
            with boundary("sandbox"):
                await wait_healthy(self.sandbox, check, where="task.toml:environment.healthcheck")

    async def _gate(self) -> None:
        if self._environment is None:
            return
        seconds = self._plan.config.deadlines.provision
        async with within(seconds, "environment", "the readiness gate"):
            probe = await self._environment.readiness()
        if probe.ready:
            return
        silent = [name for name, answered in probe.checked.items() if not answered]
        raise ReadinessError(
            f"environment {self._environment.name!r} is not ready after"
            f" {probe.waited_sec:g} s: {probe.error or 'no answer'}"
            + (f" ({', '.join(silent)})" if silent else "")
        )
