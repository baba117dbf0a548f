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
    MODEL_DOOR,
    BenchFlowError,
    CallBudget,
    CallGate,
    Door,
    DoorPath,
    Environment,
    EnvState,
    ModelCall,
    ModelRoute,
    OutsideState,
    OutsideWorld,
    Phase,
    ProvisionContext,
    Sandbox,
    SandboxError,
    SandboxImage,
    SandboxSpec,
    SandboxUnsupportedError,
    SnapshotError,
    SupportsCallGate,
    SupportsCallReports,
    Task,
    TracksFileChanges,
    UserModel,
    caused_inside,
    caused_outside,
    outside_world,
)

from benchflow_kernel.faults import boundary, within
from benchflow_kernel.resolve import Plan

from .identity import identity_of
from .model_route import MessageReader, complete_calls, endpoint_of, error_of, open_route, reader_of
from .phases import Phases
from .sessions import CarriedSessions, LiveWorld, Sessions
from .task_files import TaskFiles
from .task_processes import wait_healthy, wait_ready, write_service_logs

_ALIVE_SEC = 10
"""Seconds that the sandbox of a failed agent has to run one command."""

_CALLS_END_SEC = 60
"""Seconds that a checkpoint waits for the model calls in flight."""


class World:
    """The world of one branch: the root of the rollout, or a forked child.

    `open` runs the phases from `start` to `readiness`, and only then can an agent be
    connected. It reports each phase to `on_phase`, and the image digests of a new sandbox
    to `on_created`. `aclose` reverts everything that was done, in reverse order, and may be
    called at any time.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        node: str,
        log_dir: Path | None,
        on_phase: Callable[[Phase], None],
        on_created: Callable[[Mapping[str, str], Mapping[str, DoorPath]], None],
        carried: CarriedSessions,
    ) -> None:
        self._plan = plan
        self._node = node
        self._log_dir = log_dir
        self._on_phase = on_phase
        self._on_created = on_created
        self._environment: Environment | None = None
        self._outside: OutsideWorld | None = None
        self._provisioned = False
        self._sandbox: Sandbox | None = None
        self._route: ModelRoute | None = None
        self.budget: CallBudget | None = None  # of the model route; set it before `open`
        self._earlier_calls = 0
        """The number of model calls of an earlier rollout at the start of the route's record."""
        self._on_call: Callable[[ModelCall], None] | None = None
        self._call_gate: CallGate | None = None
        self._user: UserModel | None = None
        self._leaks: list[BenchFlowError] = []
        self.phases = Phases(plan)
        self.sessions = Sessions(plan, None if log_dir is None else log_dir / "agent", carried)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox. Only after `open` has created it."""
        assert self._sandbox is not None, "the world is not open"
        return self._sandbox

    @property
    def environment(self) -> Environment | None:
        """The world's environment, when the task has one."""
        return self._environment

    @property
    def outside(self) -> OutsideWorld | None:
        """The world's environment, if its world is outside the sandbox."""
        return self._outside

    @property
    def user(self) -> UserModel:
        """The user at the other end of this world's questions."""
        assert self._user is not None, "the world is not set up"
        return self._user

    def grading_spec(self, task: Task) -> SandboxSpec:
        """Return the spec of a fresh grading sandbox for `task`, or for one of its steps."""
        return self._plan.grading_spec(task.config.verifier)

    @property
    def verifier_dir(self) -> Path | None:
        """The host directory for the verifier's output."""
        return None if self._log_dir is None else self._log_dir / "verifier"

    def verifier_dir_of(self, step: str) -> Path | None:
        """Return the host directory for a verifier's output on one step of the task."""
        return None if self._log_dir is None else self._log_dir / "steps" / step / "verifier"

    def setup(self) -> None:
        """Create the environment object and the user. Start nothing."""
        factory = self._plan.planes.environment
        if factory is not None:
            with boundary("environment"):
                self._environment = factory()
                self._outside = outside_world(self._environment)
        with boundary("environment"):
            self._user = self._plan.planes.user()

    @property
    def calls(self) -> Sequence[ModelCall]:
        """The model calls of this world so far, in the order in which they ended.

        Replayed calls are included; requests, responses and calls of a resumed rollout are not.
        """
        return () if self._route is None else self._route.outline()[self._earlier_calls :]

    def message_reader(self) -> MessageReader | None:
        """Return what reads the conversation of the calls; `None` if no gateway sees them."""
        return reader_of(self._route)

    def calls_since(self, count: int) -> tuple[ModelCall, ...]:
        """Return all but the first `count` calls, complete, in the order in which they began."""
        return () if self._route is None else complete_calls(self._route, self.calls[count:])

    @property
    def model_error(self) -> BenchFlowError | None:
        """Why the model route ended the agent's work, or why the work had no model."""
        return None if self._route is None else error_of(self._route)

    @property
    def unplayed(self) -> int:
        """The number of recorded model calls that the agent has not repeated yet."""
        return 0 if self._route is None else self._route.unplayed

    def watch_model(self, on_error: Callable[[BenchFlowError], None]) -> None:
        """Call `on_error` when the model route ends the agent's work."""
        if self._route is not None:
            self._route.watch(on_error)

    def watch_calls(self, on_call: Callable[[ModelCall], None], gate: CallGate | None) -> None:
        """Call `on_call` with the outline of each new model call. Call this before `open`.

        `gate` decides about each call that is not replayed, if the route is a `SupportsCallGate`.
        """
        self._on_call, self._call_gate = on_call, gate

    async def open(
        self,
        image: SandboxImage | None = None,
        *,
        live: LiveWorld | None = None,
        state: EnvState | None = None,
        outside: OutsideState | None = None,
        replay: Sequence[ModelCall] = (),
        upload_agent_files: bool = False,
        step: int = 0,
    ) -> None:
        """Start the sandbox, from the spec or from a checkpoint, and make the world ready.

        The services of a live checkpoint run already, and their state must equal `state`. A world
        outside the sandbox reaches the state `outside`.
        The model route answers the calls in `replay` from the record first. Give
        `upload_agent_files` for a checkpoint of another rollout: the skills and the solution
        of this rollout are uploaded. A world from a checkpoint starts in the agent's phase
        of `step`, a world from the spec in the setup.

        Raises:
            BenchFlowError: A phase failed or exceeded its deadline. Call `aclose` also
                then.
        """
        deadlines = self._plan.config.deadlines
        doors = await self._open_doors()
        self._on_phase("start")
        async with within(deadlines.start, "sandbox", "starting the sandbox"):
            await self._start(image, replay, step, doors)
        if image is None:
            await self.files.upload_task()
        elif upload_agent_files:
            await self.files.upload_agent()
        self._on_phase("provision")
        await self._provision(image, live, state, outside)
        self._on_phase("readiness")
        if self._environment is not None:
            await wait_ready(self._environment, deadlines.provision)
        await self._wait_healthy()
        if image is not None:
            await self.phases.enter_agent(step)
            return
        if (seed := self._plan.config.seed) is not None:
            await self.reseed(seed)
        await self.files.upload_shared()
        if not self._plan.task.steps:
            await self.set_baseline()

    async def set_baseline(self) -> None:
        """Let the sandbox report file changes relative to its files now."""
        if (tracker := self._change_tracker) is not None:
            with suppress(SandboxUnsupportedError):
                async with within(self._plan.config.deadlines.start, "sandbox", "marking files"):
                    await tracker.set_baseline()

    @asynccontextmanager
    async def ignore_changes(self) -> AsyncGenerator[None]:
        """Do not count file changes inside this block as the agent's.

        The changes do count while a process of an agent runs, since their author is then unknown.
        """
        async with AsyncExitStack() as stack:
            if (tracker := self._change_tracker) is not None:
                with suppress(SandboxUnsupportedError):
                    await stack.enter_async_context(tracker.ignore_changes())
            yield

    @property
    def _change_tracker(self) -> TracksFileChanges | None:
        """The sandbox, if grading compares its files.

        A hermetic grader compares artifacts with its own image. It needs the baseline only
        if its image differs from the agent's.
        """
        sandbox, task = self.sandbox, self._plan.task
        verifiers = [step.verifier for step in task.steps] or [task.config.verifier]
        if all(
            verifier.isolation == "hermetic" and verifier.environment is None
            for verifier in verifiers
        ):
            return None
        return sandbox if isinstance(sandbox, TracksFileChanges) else None

    @property
    def files(self) -> TaskFiles:
        """Copies files into the sandbox, and the shared files out of it."""
        return TaskFiles(self._plan, self.sandbox)

    async def run(self, command: Sequence[str]) -> None:
        """Run a command of BenchFlow as root.

        Raises:
            SandboxError: The command did not exit with 0.
        """
        seconds, text = self._plan.config.deadlines.start, " ".join(command)
        async with within(seconds, "sandbox", f"running {text!r}"):
            result = await self.sandbox.exec(command, user="root", cwd="/")
        if not result.ok:
            raise SandboxError(f"{text!r} exited with {result.exit_code}: {result.stderr[-200:]}")

    async def quiesce(self) -> None:
        """Wait until the model route has no call in flight.

        Raises:
            SnapshotError: A call takes too long.
        """
        if self._route is not None and not await self._route.quiesce(_CALLS_END_SEC):
            raise SnapshotError(
                f"{self._route.in_flight} model calls are still in flight", retryable=True
            )

    async def capture(self) -> LiveWorld:
        """Return the services and sessions for a live image, while the sandbox is frozen.

        Raises:
            SnapshotError: A service or session cannot be carried from this point.
        """
        with boundary("snapshot"):
            services: Mapping[str, str] = {}
            if self._environment is not None:
                services = await self._environment.live_services()
            return LiveWorld(services=services, sessions=await self.sessions.capture())

    async def capture_outside(self) -> OutsideState | None:
        """Return the state of the world outside the sandbox, if there is one.

        Raises:
            SnapshotError: That state cannot be captured.
        """
        if self._outside is None:
            return None
        with boundary("snapshot"):
            return await self._outside.capture()

    async def expect_sandbox(self) -> None:
        """Raise `SandboxError` if the sandbox itself has failed.

        A lost sandbox is not the agent's failure. If the agent has used up the sandbox, that is
        the agent's failure.
        """
        try:
            await self.sandbox.exec(["true"], timeout=_ALIVE_SEC)
        except SandboxError as error:
            if error.retryable or caused_inside(error) or caused_outside(error):
                raise

    async def evict(self, process_ids: Sequence[str]) -> None:
        """End agent processes that came with a live image and have no role here."""
        seconds = self._plan.config.deadlines.connect
        async with within(seconds, "sandbox", "ending an agent without a role"):
            for process_id in process_ids:
                await (await self.sandbox.attach(process_id)).aclose()

    async def check(self, expected: EnvState | None) -> None:
        """Check the environment's invariants, and its state against an expected one.

        Raises:
            EnvironmentError_: An invariant does not hold.
            SnapshotError: The state differs from the expected one.
        """
        if self._environment is not None:
            seconds = self._plan.config.deadlines.provision
            async with within(seconds, "environment", "the environment's invariants"):
                await self._environment.check(expected)

    async def reseed(self, seed: int) -> None:
        """Seed the random numbers of the environment."""
        if self._environment is not None:
            seconds = self._plan.config.deadlines.provision
            async with within(seconds, "environment", "reseeding the environment"):
                await self._environment.reseed(seed)

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot of this world. `aclose` returns the error if that fails."""
        revert = partial(self._plan.planes.provider.discard, image)
        await self._revert("sandbox", "discarding a snapshot", revert, self._leaks)

    def while_quiesced(self) -> AbstractAsyncContextManager[None]:
        """Stop the environment's servers from writing inside this block, around a freeze."""
        return nullcontext() if self._environment is None else self._environment.quiesce()

    async def query(self) -> EnvState | None:
        """Read the environment's state; `None` without an environment."""
        if self._environment is None:
            return None
        deadline = self._plan.config.deadlines.provision
        async with within(deadline, "environment", "reading the environment's state"):
            return await self._environment.query()

    async def save_service_logs(self) -> None:
        """Save the services' output so far. An error here does not fail the rollout."""
        if self._sandbox is None or self._log_dir is None or not self._sandbox.spec.services:
            return
        seconds = self._plan.config.deadlines.teardown
        with suppress(BenchFlowError):
            async with within(seconds, "sandbox", "reading the output of the services"):
                await write_service_logs(self._sandbox, self._log_dir / "services")

    async def aclose(self) -> list[BenchFlowError]:
        """Revert everything and return the errors. Every layer is attempted.

        Each layer has the full teardown deadline: a layer that hangs cannot keep others alive.
        """
        errors, self._leaks = self._leaks, []
        try:
            await self.sessions.aclose()
        except BenchFlowError as error:
            errors.append(error)
        if self._user is not None:
            await self._revert("environment", "releasing the user", self._user.aclose, errors)
        if self._environment is not None and self._provisioned:
            revert = self._environment.teardown
            await self._revert("environment", "tearing down the environment", revert, errors)
        await self.save_service_logs()
        await self.close_route(errors)
        if self._sandbox is not None:
            revert = self._sandbox.teardown
            await self._revert("sandbox", "tearing down the sandbox", revert, errors)
        return errors

    async def close_route(self, errors: list[BenchFlowError]) -> None:
        """Close the model route: a token in the sandbox or its snapshots is then of no use."""
        if self._route is not None:
            await self._revert("sandbox", "closing the model route", self._route.aclose, errors)

    async def _revert(
        self,
        boundary: Literal["environment", "sandbox"],
        work: str,
        revert: Callable[[], Awaitable[None]],
        errors: list[BenchFlowError],
    ) -> None:
        try:
            async with within(self._plan.config.deadlines.teardown, boundary, work):
                await revert()
        except BenchFlowError as error:
            errors.append(error)

    async def _open_doors(self) -> tuple[Door, ...]:
        if self._outside is None:
            return ()
        self._provisioned = True
        seconds = self._plan.config.deadlines.provision
        async with within(seconds, "environment", "opening the doors of the environment"):
            return await self._outside.open_doors()

    async def _start(
        self,
        image: SandboxImage | None,
        replay: Sequence[ModelCall],
        step: int,
        doors: Sequence[Door],
    ) -> None:
        plan = self._plan
        await self._open_route(replay)
        agent_step = None if image is None else step
        spec = plan.created_spec(agent_step, await endpoint_of(plan, self._route, image))
        for door in doors:
            spec = spec.with_door(door)
        self._sandbox = await plan.planes.provider.create(
            spec, image=image, identity=identity_of(plan, self._node)
        )
        if image is None:
            self._report_created(self._sandbox)
        self.phases.set_sandbox(self._sandbox, agent_step)

    def _report_created(self, sandbox: Sandbox) -> None:
        # An isinstance check of a protocol costs more than writing an event.
        images: Mapping[str, str] = getattr(sandbox, "image_digests", None) or {}
        doors: Mapping[str, DoorPath] = getattr(sandbox, "door_paths", None) or {}
        if (path := self._plan.model_path) is not None:
            doors = {**doors, MODEL_DOOR: path}
        if images or doors:
            self._on_created(images, doors)

    async def _open_route(self, replay: Sequence[ModelCall]) -> None:
        """Open the gateway's route of this node to the model, if there are both."""
        self._route = await open_route(self._plan, self._node, replay, self.budget)
        if self._route is not None:
            self._earlier_calls = len(self._route.outline())
            if self._on_call is not None and isinstance(self._route, SupportsCallReports):
                self._route.on_call(self._on_call)
            if self._call_gate is not None and isinstance(self._route, SupportsCallGate):
                self._route.before_call(self._call_gate)

    async def _provision(
        self,
        image: SandboxImage | None,
        live: LiveWorld | None,
        state: EnvState | None,
        outside: OutsideState | None,
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
            outside=outside,
            seed=self._plan.config.seed,
        )
        seconds = self._plan.config.deadlines.provision
        async with within(seconds, "environment", "provisioning the environment"):
            await self._environment.provision(context)

    async def _wait_healthy(self) -> None:
        check = self._plan.task.config.environment.healthcheck
        if check is not None:
            with boundary("sandbox"):
                await wait_healthy(self.sandbox, check, where="task.toml:environment.healthcheck")
