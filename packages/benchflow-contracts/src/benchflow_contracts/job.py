"""Jobs: a rollout as a driver hands it out, and the parts of a job that can be replaced.

A worker may run an attempt more than once, for example when the connection to it breaks. Only one
attempt of a slot counts: the store commits the first completion, and records every later one.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Protocol

from pydantic import Field, JsonValue

from ._model import Model
from .events import Event
from .tree import NodeError

CompletionStatus = Literal["scored", "unscored", "cancelled", "lost"]
"""`scored`: there is a verdict that counts. `unscored`: the rollout ended without one.
`cancelled`: the driver cancelled it. `lost`: the worker ended, and nothing is known of the
rollout; it may still run."""


class Dispatch(Model):
    """One attempt at one slot of a job. It can be sent to another host."""

    schema_version: Literal["1.0"] = "1.0"
    job: str = Field(min_length=1)
    index: int = Field(ge=0)
    """The place of the slot in the schedule."""
    slot: str = Field(min_length=1)
    """The name of the slot, unique in the job."""
    attempt: int = Field(ge=1)
    """The number of the try, from 1. A resumed job continues the count."""
    epoch: int = Field(ge=1)
    """The number of the driver's run of the job. A later run has a greater one."""
    rollout: str = Field(min_length=1)
    """The id of the rollout, unique in the job."""
    payload: Mapping[str, JsonValue] = {}
    """What the executor runs, as JSON. Only the executor reads it."""
    needs: Mapping[str, int] = {"slots": 1}
    """The resources that the rollout holds while it runs, by name."""
    deadline_sec: float | None = Field(default=None, gt=0)
    """The longest time that the whole rollout may take (default: no limit)."""


class Ticket(Model):
    """A worker's receipt for a dispatch."""

    id: str = Field(min_length=1)
    """Unique for the backend."""
    worker: str
    job: str
    index: int = Field(ge=0)
    attempt: int = Field(ge=1)


class AttemptEvent(Model):
    """An event of a rollout, without its large fields."""

    kind: str
    """As the kind of `Event`."""
    ts: float
    """Seconds since the epoch."""
    data: Mapping[str, JsonValue] = {}


class FileRef(Model):
    """A file of a rollout whose bytes are in an `EvidenceStore`."""

    role: str = Field(min_length=1)
    """Its part and its path in the directory of the rollout, such as `outputs/tree.json`."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Completion(Model):
    """How one attempt ended."""

    schema_version: Literal["1.0"] = "1.0"
    job: str
    index: int = Field(ge=0)
    slot: str
    attempt: int = Field(ge=1)
    epoch: int = Field(ge=1)
    rollout: str
    status: CompletionStatus
    record: Mapping[str, JsonValue] | None = None
    """The record of the rollout, as JSON; `None` if there is none."""
    error: NodeError | None = None
    """Why there is no score."""
    started_at: float | None = None
    """Seconds since the epoch, by the worker's clock."""
    finished_at: float | None = None
    measured: Mapping[str, float] = {}
    """Tokens and costs, by name. An unknown one is left out."""
    events: tuple[AttemptEvent, ...] = ()
    """The events of the rollout for the record of the job, in order, with a limit."""
    files: tuple[FileRef, ...] = ()
    """The files of a rollout whose directory the driver does not see."""

    @classmethod
    def of(
        cls,
        dispatch: Dispatch,
        status: CompletionStatus,
        *,
        record: Mapping[str, Any] | None = None,
        error: NodeError | None = None,
        measured: Mapping[str, float] | None = None,
        events: tuple[AttemptEvent, ...] = (),
        started_at: float | None = None,
        finished_at: float | None = None,
    ) -> "Completion":
        """Return the completion of `dispatch`."""
        return cls(
            job=dispatch.job,
            index=dispatch.index,
            slot=dispatch.slot,
            attempt=dispatch.attempt,
            epoch=dispatch.epoch,
            rollout=dispatch.rollout,
            status=status,
            record=record,
            error=error,
            measured=measured or {},
            events=events,
            started_at=started_at,
            finished_at=finished_at,
        )


class Executor(Protocol):
    """Runs one dispatch. A backend on another host imports it as `module:attr`."""

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        """Run the rollout to its end and return how it ended.

        A failed rollout is a completion, not an exception. On cancellation, tear the rollout
        down and raise the cancellation again.
        """
        ...


class WorkerBackend(Protocol):
    """Runs dispatches, here or on other hosts.

    The driver owns the schedule, the attempts and the commits: a backend never repeats an attempt.
    """

    async def start(self) -> None:
        """Make the workers available. After an error, nothing is left running."""
        ...

    def capacity(self) -> Mapping[str, int]:
        """Return the resources of all workers together, such as `{"slots": 64}`."""
        ...

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Hand out one attempt. Wait until its resources are free.

        Raises:
            CapacityError: No worker has, or can have, what the dispatch needs, or the backend is
                closed, also while the call waits.
        """
        ...

    def completions(self) -> AsyncIterator[Completion]:
        """Yield each completion, in any order. One may arrive twice.

        An executor that raises, or that returns the completion of another dispatch, gives an
        unscored completion. The iteration ends after `close`, with the last completion.
        """
        ...

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        """End an attempt: it has `grace_sec` seconds for its teardown.

        Its completion still arrives. Without effect if the attempt has ended.
        """
        ...

    async def close(self) -> None:
        """End every attempt and every worker. Repeatable."""
        ...


class ResizableBackend(WorkerBackend, Protocol):
    """A backend whose capacity can change while it runs."""

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources that may be held at once. What runs is not ended.

        A waiting `submit` that needs more than that raises `CapacityError`.
        """
        ...


class JobStore(Protocol):
    """Writes the record of one job. A write is durable when it returns.

    A scored attempt counts over an unscored one, then the greater attempt number, then the greater
    epoch. The first scored attempt of a slot is final; a later one is a recorded duplicate.
    """

    @property
    def epoch(self) -> int:
        """The number of this run of the job. Later stores have greater ones."""
        ...

    async def start(self, dispatch: Dispatch) -> None:
        """Record that an attempt runs. If its driver dies, the attempt becomes `interrupted`.

        Raises:
            StoreError: As `commit`.
        """
        ...

    async def commit(self, completion: Completion) -> None:
        """Record how an attempt ended.

        Raises:
            StoreError: A later run of the job has begun, the schedule has no such slot, or the
                record cannot be written. Nothing of the commit is stored.
        """
        ...

    async def close(self) -> None:
        """Release the record. Repeatable."""
        ...


class Clock(Protocol):
    """The time of a driver. A test's clock is a virtual one."""

    def time(self) -> float:
        """Return the wall-clock time in seconds since the epoch. It may jump; do not subtract."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for deadlines and durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class EvidenceStore(Protocol):
    """Stores artifacts by the SHA-256 of their bytes, as `artifact://sha256/HEX`."""

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their digest, 64 hex digits. Repeatable.

        Raises:
            StoreError: The bytes cannot be stored.
        """
        ...

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises:
            StoreError: There are none, or they do not have this digest.
        """
        ...

    async def has(self, digest: str) -> bool:
        """Return whether the store has the bytes of a digest."""
        ...

    async def delete(self, digest: str) -> None:
        """Delete the bytes of a digest. Without effect if there are none."""
        ...
