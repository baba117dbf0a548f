"""The methods that a client of a foreign environment needs, and the values that it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from benchflow_contracts import Space, Step, WorldCall

EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The schema of a tool without arguments."""


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """An image of an answer."""

    data: str
    """The bytes in base64."""
    mime_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class WorldTool:
    """One tool of a world."""

    name: str
    """1 to 64 of the characters A-Z, a-z, 0-9, `_`, `.` and `-`."""
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: EMPTY_SCHEMA)
    """A JSON schema of an object."""


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """What a world says: to the opening of an episode, to a call, or at the end."""

    content: str | Sequence[str | ImageBlock] = ""
    """Text, or texts and images in order."""
    reward: float | None = None
    """The reward of this exchange; `None`: this exchange does not have one."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the reward, for the record. Rules for the return do not count them."""
    finished: bool = False
    """Whether the episode is over."""
    failed: bool = False
    """Whether a tool call failed because of the agent, such as by a wrong argument."""
    space: Space = "output"
    """What the reward judges."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What happened in an episode, for a world that judges it at the end."""

    steps: Sequence[Step]
    """The steps of the agent, from the start of the rollout."""
    calls: Sequence[WorldCall]
    """The opening and the tool calls, in order."""

    @property
    def last_message(self) -> str:
        """The last text of the agent; empty if it wrote none."""
        return next((step.message for step in reversed(self.steps) if step.message), "")


class WorldClient(Protocol):
    """One session with a foreign environment.

    The methods are called one at a time. An exception means that the environment failed, and the
    rollout is then not scored. An error of the agent is a `WorldAnswer` with `failed`. Each call
    has a time limit, at which it is cancelled.
    """

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        """Begin an episode. The text of the answer is the agent's prompt, if it is not empty."""
        ...

    async def tools(self) -> Sequence[WorldTool]:
        """Return the tools of the episode. Called once, after `open`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        """Call one of the tools. The arguments come from the agent and are not checked."""
        ...

    async def close(self) -> None:
        """End the session. Called once, also if `open` failed or was cancelled."""
        ...


@runtime_checkable
class JudgesEpisode(Protocol):
    """A `WorldClient` that may add a reward after the agent has ended."""

    async def finish(self, conversation: Conversation) -> WorldAnswer | None:
        """Return the final reward, or `None` if the episode does not have one.

        Called at most once, also if the episode is over already.
        """
        ...


@runtime_checkable
class CopiesState(Protocol):
    """A `WorldClient` whose world copies its state itself: snapshots `live` or `state`."""

    async def snapshot(self) -> object:
        """Return a JSON value from which `restore` reaches the state of now."""
        ...

    async def restore(self, task: Mapping[str, Any], seed: int, snapshot: object) -> None:
        """Begin an episode in the state of `snapshot`, instead of `open`."""
        ...
