"""The engine's executor: a dispatch becomes a rollout on disk and a completion."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    Boundary,
    CapacityError,
    Completion,
    Culprit,
    Dispatch,
    Event,
    NodeError,
    QuotaError,
    RolloutIdentity,
    SandboxError,
)
from benchflow_engine.flags import run_config
from benchflow_engine.scaffold import write_task
from benchflow_jobs.attempt_events import events_of
from benchflow_jobs.executor import EngineExecutor, RolloutInputs, end_of, fingerprint
from benchflow_jobs.scheduling import End
from benchflow_kernel import load_task
from benchflow_store import StoredRollout
from benchflow_testing.fakes import FakeSandboxProvider

DISPATCH = Dispatch(job="j", index=3, slot="t#0", attempt=2, epoch=7, rollout="r")


class Failing(FakeSandboxProvider):
    def __init__(self, error: SandboxError | None = None) -> None:
        super().__init__()
        self.error = error
        self.identities: list[RolloutIdentity] = []

    async def create(self, *args: Any, **options: Any) -> Any:
        self.identities.append(options["identity"])
        if self.error is not None:
            raise self.error
        return await super().create(*args, **options)


def run(tmp_path: Path, provider: Failing, agent: str = "nop") -> tuple[Completion, list[Event]]:
    write_task(tmp_path / "t")
    task = load_task(tmp_path / "t")
    inputs = RolloutInputs(provider, task, run_config(agent=agent))
    executor = EngineExecutor(tmp_path, lambda _: inputs)
    events: list[Event] = []
    return asyncio.run(executor.run(DISPATCH, events.append)), events


def test_a_completion_has_the_record_that_is_on_disk(tmp_path: Path) -> None:
    provider = Failing()
    completion, events = run(tmp_path, provider)
    stored = StoredRollout(tmp_path / "r")
    assert stored.record is not None
    assert completion.record == stored.record.model_dump(mode="json")
    assert (stored.record.slot, stored.record.attempt, stored.record.epoch) == ("t#0", 2, "7")
    assert (completion.index, completion.attempt, completion.rollout) == (3, 2, "r")
    assert [event.kind for event in events] == [event.kind for event in stored.log.events]
    assert completion.events == events_of(stored.log.events) != ()
    identity = provider.identities[0]
    assert (identity.scope, identity.slot, identity.attempt) == ("j", "t#0", 2)


@pytest.mark.parametrize(
    ("error", "may_pass", "stops_job"),
    [
        (CapacityError("no room"), True, False),
        (SandboxError("bad image"), False, False),
        (QuotaError("no credit"), False, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_tells_the_schedule_what_to_do(
    tmp_path: Path, error: SandboxError, may_pass: bool, stops_job: bool
) -> None:
    completion, _ = run(tmp_path, Failing(error))
    end = end_of(completion)
    assert (completion.status, end.scored) == ("unscored", False)
    assert (end.may_pass, end.stops_job) == (may_pass, stops_job)
    assert str(error) in end.reason


def test_a_rollout_that_cannot_begin_has_a_record_and_its_error(tmp_path: Path) -> None:
    completion, events = run(tmp_path, Failing(), agent="no-such-agent")
    assert events == []
    assert completion.error is not None
    assert "no-such-agent" in completion.error.message
    assert StoredRollout(tmp_path / "r").record is not None


def test_the_end_of_an_attempt_without_an_error() -> None:
    assert end_of(Completion.of(DISPATCH, "scored")) == End(scored=True)
    assert end_of(Completion.of(DISPATCH, "cancelled")).fingerprint is None
    assert end_of(Completion.of(DISPATCH, "lost")).may_pass


def test_the_job_names_the_boundaries_that_are_tried_again() -> None:
    def passes(boundary: Boundary, by: Culprit, boundaries: tuple[str, ...]) -> bool:
        error = NodeError(boundary=boundary, type="E", message="m", retryable=True, caused_by=by)
        completion = Completion.of(DISPATCH, "unscored", error=error)
        return end_of(completion, boundaries).may_pass

    assert passes("agent", "unknown", ("agent",))
    assert not passes("agent", "unknown", ("sandbox",))
    assert not passes("sandbox", "unknown", ())
    # The host is never the task's fault.
    assert passes("agent", "host", ())


def test_one_error_of_two_rollouts_has_one_fingerprint() -> None:
    def error(message: str) -> NodeError:
        return NodeError(boundary="agent", type="AgentError", message=message)

    first = error("no model 'm' at /tmp/a/b after 12.5 s (id 4f3a9c0012)")
    second = error("no model 'm' at /tmp/c after 3 s (id 99aa88bb77)")
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(error("another model"))
