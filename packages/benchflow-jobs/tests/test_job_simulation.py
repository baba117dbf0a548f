"""Whole jobs in simulated time, from seeds."""

import pytest
from benchflow_contracts import Completion
from benchflow_jobs.scheduling import Finish, SlotState
from simulated_job import Simulation

SEEDS = range(200)


def statuses(attempts: dict[int, Completion]) -> list[str]:
    return [completion.status for completion in attempts.values()]


def test_every_slot_is_resolved_once_and_no_attempt_runs_twice() -> None:
    duplicates = 0
    for seed in SEEDS:
        finish, backend, record, scheduler = Simulation(seed).run()
        where = f"seed {seed}"
        count = len(scheduler.schedule)
        assert finish == Finish("completed"), where
        assert record.resolved.keys() == set(range(count)), where
        assert set(backend.runs.values()) <= {1}, where
        for index in range(count):
            attempts = record.committed[index]
            assert list(attempts) == list(range(1, len(attempts) + 1)), where
            scored = statuses(attempts).count("scored")
            assert scored <= 1, where
            assert (record.resolved[index] == SlotState.COMPLETED) == bool(scored), where
        duplicates += record.duplicates
    # The simulation would show a duplicate that counts.
    assert duplicates > 0


@pytest.mark.parametrize("full_at", [0, 40, 200])
def test_a_full_disk_stops_the_job_and_every_attempt_is_ended(full_at: float) -> None:
    for seed in SEEDS[:40]:
        finish, backend, record, scheduler = Simulation(seed, full_at=full_at).run()
        assert not scheduler.running, f"seed {seed}"
        assert not any(backend.used.values()), f"seed {seed}"
        scored = [i for i, attempts in record.committed.items() if "scored" in statuses(attempts)]
        complete = [i for i, state in record.resolved.items() if state == SlotState.COMPLETED]
        assert set(complete) <= set(scored), f"seed {seed}"
        if finish.status == "stopped":
            assert "no space is left" in finish.reason
        else:
            assert len(record.resolved) == len(scheduler.schedule), f"seed {seed}"
