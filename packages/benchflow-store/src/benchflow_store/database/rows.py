"""What a driver writes into the record database, and what the database answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

import pydantic_core
from benchflow_contracts import Model
from pydantic import Field, ValidationError

from .errors import DamagedDatabaseError

if TYPE_CHECKING:
    from benchflow_contracts import Completion

SlotStatus = Literal["pending", "completed", "failed", "skipped_pruned"]
"""`completed`: scored. `failed`: unscored after its last attempt."""

AttemptStatus = Literal["running", "interrupted", "scored", "unscored", "cancelled", "lost"]
"""`interrupted`: its driver ended before the attempt did."""

JobStatus = Literal["running", "paused", "interrupted", "killed", "completed", "failed"]
"""The states of `run_control_v2`."""


_Parsed = TypeVar("_Parsed", bound=Model)
_DEEPEST: Final = 100
"""The nesting of JSON that every reader accepts."""


class PlanRevision(Model):
    """The resolved configuration of a job. `extend` adds a later revision."""

    config_digest: str = Field(min_length=1)
    design: str = "paired"
    baseline: str | None = None
    """The variant that others are compared with (default: the first one of the schedule)."""
    variants: Mapping[str, Mapping[str, Any]] = {}
    """The bindings of each variant, by its name."""
    config: Mapping[str, Any] = {}
    """Everything else of the resolved configuration, as JSON without secrets."""


class RunControl(Model):
    """The observable state of a job."""

    status: JobStatus = "running"
    pause: Mapping[str, Any] | None = None
    """Label, time and sender of a pause that is in force."""
    stopped: str | None = None
    """Why the job stopped before its end, in one line."""
    model_limits: Mapping[str, int] = {}
    """Rollouts at once by model endpoint, since the endpoint answered 429 or was overloaded."""
    cost_limit_usd: float | None = None
    """The limit on the cost of the job that is in force."""
    updated: float = 0.0
    """Seconds since the epoch."""


class PlannedSlot(NamedTuple):
    """One planned rollout. Its index is its place in the schedule."""

    name: str
    variant: str
    task: str
    repeat: int
    task_digest: str


class Metric(NamedTuple):
    """A number of an attempt. A measured one, such as a time, differs between equal runs."""

    name: str
    value: float
    measured: bool = False


class EventRow(NamedTuple):
    """An event of an attempt, in order."""

    kind: str
    data: Mapping[str, Any]
    ts: float | None = None
    """Seconds since the epoch."""


class ArtifactRef(NamedTuple):
    """An artifact of an attempt, in the evidence store."""

    role: str
    """Its part in the attempt, such as `workspace_post`. Unique in the attempt."""
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One attempt that has ended, and all that the database keeps of it."""

    completion: "Completion"
    started: float | None = None
    """Seconds since the epoch."""
    finished: float | None = None
    metrics: Sequence[Metric] = ()
    events: Sequence[EventRow] = ()
    refs: Sequence[ArtifactRef] = ()
    fingerprint: str | None = None
    """The same for errors with the same cause."""
    is_last: bool = False
    """Whether the slot has no further attempt. Without a score, it is then `failed`."""

    @property
    def is_scored(self) -> bool:
        """Whether the attempt has a verdict that counts."""
        return self.completion.status == "scored"


class Receipt(NamedTuple):
    """The answer to a commit. It is durable."""

    counted: bool
    """Whether this attempt is now the one that counts for its slot."""
    duplicate: bool
    """Whether a better or an earlier attempt counts, so that this one is only recorded."""
    status: SlotStatus
    """The status of the slot."""
    cursor: int
    """The number of leading slots that are all resolved."""


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A slot as the database has it."""

    index: int
    slot: PlannedSlot
    status: SlotStatus
    attempts: int
    """The number of the newest attempt, 0 before the first."""


class JobState(NamedTuple):
    """A job as the database has it when a writer begins."""

    name: str
    epoch: int
    cursor: int
    revision: int
    plan: PlanRevision
    control: RunControl
    created: float
    slots: tuple[StoredSlot, ...]


def to_json(value: object) -> str:
    """Return `value` as one line of JSON that every database and reader accepts.

    A number that is not finite becomes `null`. What is nested too deeply for readers is left out.
    """
    try:
        return pydantic_core.to_json(value, inf_nan_mode="null").decode()
    except pydantic_core.PydanticSerializationError:
        return pydantic_core.to_json(_readable(value), inf_nan_mode="null").decode()


def parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the value of JSON from the database.

    Raises:
        DamagedDatabaseError: The text is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise DamagedDatabaseError(f"a row of the record is damaged: {error}") from error


def parse_model(model: type[_Parsed], text: str) -> _Parsed:
    """Return a model from its JSON in the database.

    Raises:
        DamagedDatabaseError: The text does not describe the model.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise DamagedDatabaseError(f"a {model.__name__} of the record is damaged: {why}") from error


def _readable(value: object, depth: int = 0) -> object:
    """Return a value of JSON without lone surrogates and without deep nesting."""
    if isinstance(value, str):
        return _without_surrogates(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == _DEEPEST:
        return "(nested too deeply)"
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_without_surrogates(str(key)): _readable(each, depth + 1) for key, each in items}
    return [_readable(each, depth + 1) for each in cast("Sequence[object]", value)]


def storable(text: str) -> str:
    """Return `text` without characters that a database refuses: NUL and lone surrogates."""
    if text.isascii():
        return text.replace("\0", "\\0") if "\0" in text else text
    return _without_surrogates(text).replace("\0", "\\0")


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
