"""The progress of a running rollout: what each of its branches does now, and since when.

Every text comes from an agent. The renderer must escape it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchflow_contracts import (
    Branched,
    Event,
    Model,
    PhaseEntered,
    QuestionAnswered,
    QuestionOpened,
    RolloutFinished,
    RolloutStarted,
    StepFinished,
    StepStarted,
    ToolCallEnded,
    ToolCallStarted,
    TurnStarted,
    Usage,
    UsageReported,
    WorldClosed,
)

from .views import step_title

BranchActivity = Literal["prepares", "thinks", "repeats", "tool", "asks", "idle", "grades", "ends"]
"""`repeats`: a replay of recorded turns. `idle`: between two turns."""
_OF_PHASE: Final[dict[str, BranchActivity]] = {
    "execute": "thinks",
    "verify": "grades",
    "teardown": "ends",
}


class OpenTool(Model):
    """A tool call without a result."""

    call: str
    title: str
    name: str | None
    since: float
    """Seconds since the epoch."""


class BranchProgress(Model):
    """What one open branch of a rollout does. Times are seconds since the epoch."""

    world: str
    """The id of the branch's world; the id of its first node, except at the root."""
    node: str
    """The last node: the next step is a child of this node. Before the first turn, `world`."""
    activity: BranchActivity
    since: float
    last_sign: float
    """The time of the branch's last event."""
    role: str | None
    phase: str
    text: str
    """The title of the tool call or the question; else empty."""
    options: tuple[str, ...] = ()
    """The labels of an open question's options."""
    tools: tuple[OpenTool, ...] = ()
    """All tool calls that run, the oldest first."""

    def text_at(self, now: float) -> str:
        """Return one line on the branch, such as `thinking for 4.0 min` or `tool bash for 12 s`."""
        words = {
            "prepares": self.phase,
            "thinks": "thinking",
            "repeats": "repeats recorded turns",
            "asks": "waits for an answer",
            "idle": "between turns",
            "grades": "grading",
            "ends": "teardown",
        }
        doing = words.get(self.activity) or f"tool {self.tools[0].name or self.tools[0].title}"
        return f"{doing} for {span(max(0.0, now - self.since))}"


class UsageProgress(Model):
    """The tokens and the cost that were reported so far."""

    known: Usage | None = None
    """The sum of what was reported; None if nothing was."""
    cost_usd: float | None = None
    """The sum of the known costs; None if no cost is known."""
    calls: int = 0
    """Model calls of the gateway that ended."""
    calls_without_tokens: int = 0
    """Of these, the calls whose tokens are unknown. `known` is then a lower bound."""
    calls_without_cost: int = 0

    def plus(self, event: UsageReported) -> "UsageProgress":
        """Return the sum with one more report."""
        is_call = event.source == "gateway"
        cost = self.cost_usd
        if event.cost_usd is not None:
            cost = (cost or 0.0) + event.cost_usd
        return UsageProgress(
            known=_sum(self.known, event.usage),
            cost_usd=cost,
            calls=self.calls + is_call,
            calls_without_tokens=self.calls_without_tokens + (is_call and event.usage is None),
            calls_without_cost=self.calls_without_cost + (is_call and event.cost_usd is None),
        )


@dataclass(slots=True)
class _World:
    id: str
    node: str
    phase: str
    activity: BranchActivity
    since: float
    last_sign: float
    has_node: bool
    """Whether the branch has a node of its own, or is the root's."""
    role: str | None = None
    question: QuestionOpened | None = None
    tools: dict[str, ToolCallStarted] = field(default_factory=dict[str, ToolCallStarted])

    def turn_to(self, activity: BranchActivity, at: float) -> None:
        self.activity, self.since = activity, at

    def view(self) -> BranchProgress:
        tools = tuple(
            OpenTool(call=each.call, title=each.title, name=each.name, since=each.ts)
            for each in self.tools.values()
        )
        asks = self.question if self.activity == "asks" else None
        text = asks.text if asks is not None else ""
        if self.activity == "tool" and tools:
            text = tools[0].title
        return BranchProgress(
            world=self.id,
            node=self.node,
            activity=self.activity,
            since=tools[0].since if self.activity == "tool" and tools else self.since,
            last_sign=self.last_sign,
            role=self.role,
            phase=self.phase,
            text=text,
            options=() if asks is None else asks.options,
            tools=tools,
        )


class RolloutProgress:
    """The progress of a running rollout. Call `receive` with each event, in order.

    The memory depends on the open branches and the nodes, not on the length of texts. Logs of
    version 0.8 and before say less: a branch then thinks from step to step.
    """

    def __init__(self) -> None:
        self.phase = "setup"
        """The phase that some branch entered last, or its fork."""
        self.steps = 0
        self.last = ""
        """The title of the last step."""
        self.usage = UsageProgress()
        self.last_sign: float | None = None
        """The time of the last event, in seconds since the epoch."""
        self.is_finished = False
        self._worlds: dict[str, _World] = {}
        self._nodes: set[str] = set()

    @classmethod
    def of(cls, events: Iterable[Event]) -> "RolloutProgress":
        """Return the progress after `events`."""
        progress = cls()
        for event in events:
            progress.receive(event)
        return progress

    @property
    def branches(self) -> tuple[BranchProgress, ...]:
        """The branches that are open, in the order in which they began."""
        return tuple(world.view() for world in list(self._worlds.values()))

    def text(self, now: float) -> str:
        """Return one line: what the branch does that waits for longest, else the last phase."""
        branches = self.branches
        if not branches:
            return self.phase
        slowest = min(branches, key=lambda branch: branch.since).text_at(now)
        return slowest if len(branches) == 1 else f"{len(branches)} branches: {slowest}"

    def receive(self, event: Event) -> None:
        """Update the progress."""
        self.last_sign = event.ts
        update = _UPDATES.get(type(event))
        if update is not None:
            update(self, event)

    def start(self, event: RolloutStarted) -> None:
        """Add the root."""
        self._nodes.add(event.root)

    def enter_phase(self, event: PhaseEntered) -> None:
        """Add a world, or change its phase."""
        self.phase = event.phase
        world = self._worlds.get(event.node)
        activity = _OF_PHASE.get(event.phase, "prepares")
        if world is None:
            has_node = event.node in self._nodes
            world = _World(
                event.node, event.node, event.phase, activity, event.ts, event.ts, has_node
            )
            self._worlds[event.node] = world
        world.phase, world.last_sign = event.phase, event.ts
        world.tools.clear()
        world.question = None
        world.turn_to(activity, event.ts)

    def close(self, event: WorldClosed) -> None:
        """Remove a world."""
        self._worlds.pop(event.node, None)

    def fork(self, event: Branched) -> None:
        """Note a fork. Its world ends, unless the fork estimates a value."""
        if event.record.children:
            self.phase = f"fork x{event.record.children}"

    def begin_turn(self, event: TurnStarted) -> None:
        """The agent has a prompt."""
        world = self._world(event.world, event.node, event.ts)
        world.role = event.role
        world.turn_to("repeats" if event.repeats else "thinks", event.ts)

    def begin_step(self, event: StepStarted) -> None:
        """The agent shows a sign of life; it thinks since its last result."""
        world = self._world(event.world, event.node, event.ts)
        if world.activity not in {"thinks", "tool"}:
            world.turn_to("thinks", event.ts)

    def begin_tool(self, event: ToolCallStarted) -> None:
        """A tool call runs."""
        world = self._world(event.world, event.node, event.ts)
        world.tools[event.call] = event
        world.turn_to("tool", event.ts)

    def end_tool(self, event: ToolCallEnded) -> None:
        """A tool call has its result."""
        world = self._world(event.world, event.node, event.ts)
        if world.tools.pop(event.call, None) is not None and not world.tools:
            world.turn_to("thinks", event.ts)

    def ask(self, event: QuestionOpened) -> None:
        """The agent waits for an answer."""
        world = self._world(event.world, event.node, event.ts)
        world.question = event
        world.turn_to("asks", event.ts)

    def answer(self, event: QuestionAnswered) -> None:
        """The agent got its answer."""
        world = self._world(event.world, event.node, event.ts)
        world.question = None
        world.turn_to("thinks", event.ts)

    def spend(self, event: UsageReported) -> None:
        """Add tokens and cost."""
        self.usage = self.usage.plus(event)
        world = self._worlds.get(event.world)
        if world is not None:
            world.last_sign = event.ts

    def add_step(self, event: StepFinished) -> None:
        """Add a node to the branch that made it."""
        self.steps += 1
        self.last = step_title(event.step)
        self._nodes.add(event.node)
        world = self._world_of(event)
        if world is None:
            return
        world.node, world.has_node, world.last_sign = event.node, True, event.ts
        for observation in event.step.observations:
            world.tools.pop(observation.tool_call_id, None)
        if event.step.stop_reason is not None:
            world.tools.clear()
            world.turn_to("idle", event.ts)
        elif world.role is None or (world.activity == "tool" and not world.tools):
            world.turn_to("thinks", event.ts)

    def finish(self, event: RolloutFinished) -> None:
        """No branch is open any more."""
        del event
        self.is_finished = True
        self._worlds.clear()

    def _world(self, world_id: str, node: str, at: float) -> _World:
        world = self._worlds.get(world_id)
        if world is None:
            has_node = world_id in self._nodes
            world = _World(world_id, node, "execute", "thinks", at, at, has_node)
            self._worlds[world_id] = world
        world.node, world.last_sign = node, at
        return world

    def _world_of(self, event: StepFinished) -> _World | None:
        """Return the world of a step. The first step of a child has the id of its world."""
        own = self._worlds.get(event.node)
        if own is not None:
            return own
        worlds = self._worlds.values()
        return next((w for w in worlds if w.has_node and w.node == event.parent), None)


_UPDATES: Final[dict[type, Callable[[RolloutProgress, Any], None]]] = {
    RolloutStarted: RolloutProgress.start,
    PhaseEntered: RolloutProgress.enter_phase,
    WorldClosed: RolloutProgress.close,
    Branched: RolloutProgress.fork,
    TurnStarted: RolloutProgress.begin_turn,
    StepStarted: RolloutProgress.begin_step,
    ToolCallStarted: RolloutProgress.begin_tool,
    ToolCallEnded: RolloutProgress.end_tool,
    QuestionOpened: RolloutProgress.ask,
    QuestionAnswered: RolloutProgress.answer,
    UsageReported: RolloutProgress.spend,
    StepFinished: RolloutProgress.add_step,
    RolloutFinished: RolloutProgress.finish,
}


def span(seconds: float) -> str:
    """Return a duration with two digits or more, in the unit that suits it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.{1 if seconds < 10 * size else 0}f} {unit}"
    return f"{seconds:.0f} s"


def _sum(a: Usage | None, b: Usage | None) -> Usage | None:
    if a is None or b is None:
        return b if a is None else a
    return Usage(
        input_tokens=a.input_tokens + b.input_tokens,
        output_tokens=a.output_tokens + b.output_tokens,
        cached_tokens=a.cached_tokens + b.cached_tokens,
    )


def writer_of(directory: Path) -> int | None:
    """Return the process that writes the log of the rollout in `directory`; None without one.

    Without a writer, an unfinished rollout was cut short. The kernel's table of locks is read, and
    no lock is taken, so that a viewer never disturbs a run. The result is 0 for a process of
    another PID namespace. A writer on another host is not seen.
    """
    try:
        inode = str((directory / "events.jsonl").stat().st_ino)
        with open("/proc/locks", encoding="ascii") as table:  # noqa: PTH123 - not a regular file
            lines = [line.split() for line in table]
    except OSError:
        return None
    for line in lines:
        # The device differs from the one of stat on some file systems, such as btrfs.
        if line[1:4:2] == ["FLOCK", "WRITE"] and line[5].rpartition(":")[2] == inode:
            return max(int(line[4]), 0)
    return None
