"""An environment whose world is outside the sandbox, such as a service that others run."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, cast

from pydantic import Field

from ._model import RareModel
from .agent import McpServer
from .door import Door
from .environment import Environment, OutsideState, WorldSnapshots
from .step import Step
from .verdict import RewardEvent


class WorldCall(RareModel):
    """One exchange with an outside world. All texts come from the agent or from the world."""

    operation: Literal["open", "call", "finish"]
    """`open` begins the episode, `call` is a tool call of the agent, and `finish` asks the world
    for its verdict after the agent has ended."""
    tool: str = ""
    """The name of the tool, for `call`."""
    arguments: str = ""
    """The arguments of the tool, as JSON."""
    result: str = ""
    """The text that the agent gets."""
    failed: bool = False
    """Whether the tool reported an error."""
    rewards: tuple[RewardEvent, ...] = ()
    finished: bool = False
    """Whether the episode is over after this exchange."""
    took_sec: float = Field(default=0, ge=0)


WorldCallHandler = Callable[[WorldCall], None]


class OutsideWorld(Environment, Protocol):
    """An `Environment` whose world is not in the sandbox.

    The agent acts through tool servers on the host, which it reaches through doors of its sandbox.
    `benchflow-env-outside` implements this for any client of a few methods.

    For each world, `open_doors` is called before `provision`, and before the sandbox exists. The
    state is not in the sandbox: a checkpoint contains the result of `capture`, and the `provision`
    of a child gets it as `ProvisionContext.outside`.
    """

    @property
    def world_snapshots(self) -> WorldSnapshots:
        """How another session gets the state of this world. The same for all worlds of a task."""
        ...

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """The tool servers, as the agent sees them from inside. Known before `open_doors`."""
        ...

    @property
    def doors(self) -> tuple[Door, ...]:
        """The doors of the tool servers. Before `open_doors` their upstreams lead nowhere."""
        ...

    async def open_doors(self) -> tuple[Door, ...]:
        """Start the tool servers of this world on the host, and return their doors.

        Raises:
            EnvironmentError_: A server cannot start.
        """
        ...

    @property
    def prompt(self) -> str | None:
        """The world's text for the first turn, instead of the task's instruction.

        Known after `provision`. `None`: the world has no text of its own.
        """
        ...

    @property
    def terminal(self) -> bool:
        """Whether the episode is over. No tool call reaches the world afterwards."""
        ...

    def reward_events(self) -> Sequence[RewardEvent]:
        """Return the rewards so far, in order, each with its space and step.

        Raises:
            RewardError: The world sent a reward that is not a finite number.
            EnvironmentError_: The world failed, so that its rewards are incomplete.
        """
        ...

    def on_call(self, handler: WorldCallHandler) -> None:
        """Call `handler` after each exchange that is not a repetition. It must not block."""
        ...

    def end_step(self, step_id: str) -> None:
        """Note that a step of the agent ended: the calls since the last step belong to it."""
        ...

    async def capture(self) -> OutsideState:
        """Return the state. Call this inside `quiesce`, where no tool call reaches the world.

        Raises:
            SnapshotError: The world cannot be copied, or not now.
        """
        ...

    async def finish(self, steps: Sequence[Step]) -> None:
        """Give the world the agent's steps, and let it add its final rewards.

        The agent has ended. Only the first call has an effect.

        Raises:
            EnvironmentError_: The world failed.
        """
        ...


def outside_world(environment: Environment | None) -> OutsideWorld | None:
    """Return `environment` if its world is outside the sandbox, else `None`."""
    # An isinstance check of so large a Protocol costs more than the rest of a world's setup.
    return cast("OutsideWorld", environment) if hasattr(environment, "open_doors") else None
