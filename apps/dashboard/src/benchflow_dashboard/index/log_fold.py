"""What lists need of one event log: a small fold that takes the log in pieces.

The events are read as plain JSON, so a log of another version is shown as far as it is readable.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pydantic_core
from benchflow_contracts import Step
from benchflow_store import step_lines, step_title
from pydantic import ValidationError

from .reward_sums import RewardSums, add_verdict

TEXT: Final = 500
"""The maximum length of a text in a row."""
_BODY: Final = 6_000
"""The maximum length of the searchable text of a step, and of one of its lines a third of it."""
_BINS: Final = 8


@dataclass(frozen=True, slots=True)
class StepText:
    """The searchable text of one step."""

    seq: int
    node: str
    title: str
    body: str


@dataclass(slots=True)
class LogFold:
    """The state after the events so far. `to_json` and `from_json` keep the state between runs."""

    seq: int = -1
    task: str = ""
    sandbox: str = ""
    grading: str | None = None
    slot: str | None = None
    attempt: int | None = None
    epoch: str | None = None
    started: float | None = None
    last: float | None = None
    phase: str = ""
    activity: str = ""
    """What goes on: the last step, the tool call that runs, or the question that waits."""
    status: str | None = None
    """The status of `rollout_finished`, `None` before."""
    error: dict[str, Any] | None = None
    steps: int = 0
    asks: int = 0
    branches: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None
    nodes: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """By id: whether the node has children, its counted reward, and whether it has a verdict."""
    rewards: RewardSums = field(default_factory=dict[str, list[float]])
    depths: dict[str, int] = field(default_factory=dict[str, int])
    """The number of steps on the path to each node."""
    steps_at: dict[str, int] = field(default_factory=dict[str, int])
    """By the id of a step: its index on the paths through it."""
    problem: str | None = None
    """The first line that cannot be read, and why."""

    def read_line(self, line: bytes, number: int) -> StepText | None:
        """Apply one line of the log. Return the text of the step that the line adds, if any."""
        self.seq = number
        try:
            return self._apply(dict(pydantic_core.from_json(line)), number)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            if self.problem is None:
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
                self.problem = text(f"line {number + 1} of events.jsonl is not readable: {why}")
        return None

    def _apply(self, event: Mapping[str, Any], number: int) -> StepText | None:
        moment = number_or_none(event.get("ts"))
        if moment is not None:
            self.last = moment
        if event["kind"] == "step_finished":
            return self._add_step(event, number)
        apply = _APPLY.get(event["kind"])
        if apply is not None:
            apply(self, event)
        return None

    def enter_phase(self, event: Mapping[str, Any]) -> None:
        """Enter a phase."""
        self.phase = text(event["phase"])

    def show(self, event: Mapping[str, Any]) -> None:
        """Show what goes on."""
        shown = {
            "step_started": "thinks",
            "tool_call_started": f"runs: {event.get('title')}",
            "question_opened": f"asks: {event.get('text')}",
        }
        self.activity = text(shown[event["kind"]])

    def branch(self, event: Mapping[str, Any]) -> None:
        """Count a fork with children."""
        self.branches += bool(event["record"]["children"])

    def finish(self, event: Mapping[str, Any]) -> None:
        """Take the status of the end."""
        self.status = text(event["status"])
        self.error = dict(event["error"]) if event.get("error") else None

    def start(self, event: Mapping[str, Any]) -> None:
        """Begin."""
        self.started = self.last
        self.task = text(event["task_id"])
        self.nodes[text(event["root"])] = [False, None, False]
        meta = _mapping(event.get("meta"))
        identity = _mapping(meta.get("identity"))
        self.sandbox = text(meta.get("provider") or "")
        self.grading = text_or_none(meta.get("grading"))
        self.slot = text_or_none(identity.get("slot"))
        attempt = identity.get("attempt")
        self.attempt = attempt if isinstance(attempt, int) and 0 < attempt < 1 << 31 else None
        self.epoch = text_or_none(identity.get("epoch"))

    def _add_step(self, event: Mapping[str, Any], number: int) -> StepText:
        node, parent = text(event["node"]), text(event["parent"])
        self.nodes.setdefault(parent, [False, None, False])[0] = True
        self.nodes.setdefault(node, [False, None, False])
        self.steps += 1
        try:
            step = Step.model_validate(event["step"])
        except ValidationError as error:
            raise ValueError(f"not a step: {error.errors()[0]['msg']}") from error
        depth = self.depths.get(parent, 0)
        self.depths[node], self.steps_at[text(step.id)] = depth + 1, depth
        self.asks += step.ask is not None
        if step.usage is not None:
            self.tokens_in = (self.tokens_in or 0) + step.usage.input_tokens
            self.tokens_out = (self.tokens_out or 0) + step.usage.output_tokens
        title = text(step_title(step))
        self.activity = title
        lines = "\n".join(line.text[: _BODY // 3] for line in step_lines(step))
        label = event.get("label")
        body = f"{label}\n{lines}" if isinstance(label, str) else lines
        return StepText(number, node, title, text(body, _BODY))

    def add_usage(self, event: Mapping[str, Any]) -> None:
        """Add the cost of a model call."""
        cost = number_or_none(event.get("cost_usd"))
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def score(self, event: Mapping[str, Any]) -> None:
        """Add the signals of a verdict, and set the return of a node."""
        result = _mapping(event["result"])
        add_verdict(self.rewards, result, self.steps_at)
        if event["name"] != "reward":
            return
        is_tampered = _mapping(result, "meta", "integrity").get("grade") == "tampered"
        reward = None if is_tampered else number_or_none(result.get("reward"))
        node = self.nodes.setdefault(text(event["node"]), [False, None, False])
        node[1:] = [reward, True]

    def fail(self, event: Mapping[str, Any]) -> None:
        """Keep the first error; add a lost child."""
        parent = event.get("parent")
        if isinstance(parent, str):
            self.nodes.setdefault(text(parent), [False, None, False])[0] = True
            self.nodes.setdefault(text(event["node"]), [False, None, False])
        if self.error is None:
            self.error = dict(event["error"])

    @property
    def leaf_rewards(self) -> list[float | None]:
        """The returns of the leaves, `None` for a leaf without a score."""
        return [reward for has_children, reward, _ in self.nodes.values() if not has_children]

    def to_json(self) -> str:
        """Return the state as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, state: str) -> "LogFold":
        """Return the state of `to_json`."""
        return cls(**json.loads(state))


_APPLY: Final[Mapping[str, Callable[[LogFold, Mapping[str, Any]], None]]] = {
    "rollout_started": LogFold.start,
    "phase_entered": LogFold.enter_phase,
    "step_started": LogFold.show,
    "tool_call_started": LogFold.show,
    "question_opened": LogFold.show,
    "branched": LogFold.branch,
    "usage_reported": LogFold.add_usage,
    "node_scored": LogFold.score,
    "node_failed": LogFold.fail,
    "rollout_finished": LogFold.finish,
}
"""What each kind of event changes. Other kinds, also of later versions, change nothing."""


def spread_of(rewards: list[float | None]) -> dict[str, Any] | None:
    """Return the scored leaves in bins between the least and the greatest return."""
    scored = sorted(reward for reward in rewards if reward is not None)
    if not scored:
        return None
    low, high = scored[0], scored[-1]
    # Rewards usually lie between 0 and 1: equal bins in all rows can then be compared.
    least, greatest = min(low, 0.0), max(high, 1.0)
    bins = [0] * _BINS
    for reward in scored:
        place = int((reward - least) / (greatest - least) * _BINS)
        bins[min(max(place, 0), _BINS - 1)] += 1
    return {"low": low, "high": high, "bins": bins}


def text(value: object, length: int = TEXT) -> str:
    """Return `value` as text that SQLite takes: without NUL and lone surrogates, and not long."""
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r:.40}")
    short = value[:length]
    if short.isascii():
        return short.replace("\0", "\\0")
    return short.encode("utf-8", "replace").decode().replace("\0", "\\0")


def text_or_none(value: object) -> str | None:
    """Return `value` as `text` does, `None` if it is not a text."""
    return text(value) if isinstance(value, str) else None


def number_or_none(value: object) -> float | None:
    """Return a finite number, `None` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _mapping(value: object, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
