"""The environment of a world outside the sandbox."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchflow_contracts import (
    BaseEnvironment,
    Door,
    EnvHandle,
    EnvironmentError_,
    EnvironmentFactory,
    EnvState,
    McpServer,
    OutsideState,
    ProvisionContext,
    RewardEvent,
    SnapshotError,
    Step,
    Task,
    WorldCallHandler,
    WorldSnapshots,
)

from .client import WorldClient
from .limits import WorldLimits
from .session import WorldSession
from .task_data import read_task_data
from .tool_server import PATH, ToolServer

DOOR: Final = "world"
PORT: Final = 8731
MakeClient = Callable[[], WorldClient]


class OutsideEnvironment(BaseEnvironment):
    """An `OutsideWorld` over a `WorldClient`. Each object has one session.

    A tool server on the host gives the tools of the world to the agent, through a door of the
    sandbox. Only the door knows the token of the server.
    """

    def __init__(
        self,
        name: str,
        make_client: MakeClient,
        task: Mapping[str, Any],
        *,
        seed: int = 0,
        snapshots: WorldSnapshots = "replay",
        limits: WorldLimits | None = None,
        port: int = PORT,
    ) -> None:
        self.name = name
        self._make_client = make_client
        self._task = task
        self._seed = seed
        self._snapshots: WorldSnapshots = snapshots
        self._limits = limits or WorldLimits()
        self._port = port
        self._session: WorldSession | None = None
        self._server: ToolServer | None = None
        self._handlers: list[WorldCallHandler] = []

    @property
    def world_snapshots(self) -> WorldSnapshots:
        """How another session gets the state."""
        return self._snapshots

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """The tool server, as the agent sees it."""
        url = f"http://127.0.0.1:{self._port}{PATH}"
        return (McpServer(name=DOOR, transport="http", url=url),)

    @property
    def doors(self) -> tuple[Door, ...]:
        """The door of the tool server. Its upstream leads nowhere."""
        return (Door(name=DOOR, upstream="http://127.0.0.1:9", port=self._port, serves="tools"),)

    async def open_doors(self) -> tuple[Door, ...]:
        """Start the tool server. It has no tools until `provision`."""
        self._session = WorldSession(
            self.name,
            self._make_client(),
            self._task,
            self._seed,
            self._snapshots,
            self._limits,
        )
        for handler in self._handlers:
            self._session.on_call(handler)
        self._server = ToolServer(self._session, DOOR, self._limits)
        endpoint = await self._server.start()
        return (Door.to(endpoint, name=DOOR, port=self._port, serves="tools"),)

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Begin the episode, or reach the state of a checkpoint."""
        session = self._opened
        if ctx.seed is not None:
            session.seed = ctx.seed
        if ctx.outside is not None:
            await session.restore(ctx.outside)
        elif ctx.resumed:
            raise SnapshotError(
                f"the checkpoint has no state of world {self.name!r}, which is outside the sandbox"
            )
        else:
            await session.open()
        return EnvHandle(name=self.name)

    async def query(self) -> EnvState:
        """Return the digest of the episode so far, as one file."""
        return EnvState(files={f"outside/{self.name}": self._opened.digest})

    async def check(self, expected: EnvState | None = None) -> None:
        """Compare the digest of the episode with `expected`."""
        if expected is not None and await self.query() != expected:
            raise SnapshotError(f"world {self.name!r} does not have the state of its checkpoint")

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None]:
        """Let no tool call reach the world."""
        async with self._opened.while_idle():
            yield

    @property
    def prompt(self) -> str | None:
        """The text of the opening."""
        return None if self._session is None else self._session.prompt or None

    @property
    def terminal(self) -> bool:
        """Whether the episode is over."""
        return self._session is not None and self._session.terminal

    def reward_events(self) -> Sequence[RewardEvent]:
        """Return the rewards so far."""
        return self._opened.reward_events()

    def on_call(self, handler: WorldCallHandler) -> None:
        """Call `handler` after each exchange that is not a repetition."""
        self._handlers.append(handler)
        if self._session is not None:
            self._session.on_call(handler)

    def end_step(self, step_id: str) -> None:
        """Let the calls since the last step belong to this one."""
        self._opened.end_step(step_id)

    async def capture(self) -> OutsideState:
        """Return the state."""
        return await self._opened.capture()

    async def finish(self, steps: Sequence[Step]) -> None:
        """Ask the world for its final rewards."""
        await self._opened.finish(steps)

    async def teardown(self) -> None:
        """Stop the tool server and end the session. Idempotent."""
        if self._server is not None:
            await self._server.aclose()
        if self._session is not None:
            await self._session.aclose()

    @property
    def _opened(self) -> WorldSession:
        if self._session is None:
            raise EnvironmentError_(f"world {self.name!r} is not open")
        return self._session


def outside_environment(
    task: Task,
    name: str,
    make_client: MakeClient,
    *,
    snapshots: WorldSnapshots = "replay",
    limits: WorldLimits | None = None,
) -> EnvironmentFactory:
    """Return the environments of a task whose data are in `environment/world.json`.

    Raises:
        TaskError: The file is missing or malformed.
    """
    data = read_task_data(task)

    def make() -> OutsideEnvironment:
        return OutsideEnvironment(
            name, make_client, data.task, seed=data.seed, snapshots=snapshots, limits=limits
        )

    return make
