"""Whole jobs in simulated time, from seeds. `simulated_job.py` runs as many seeds as wanted."""

from collections import Counter

from simulated_job import Simulation

SEEDS = range(200)


def test_simulated_jobs_lose_and_double_nothing_whatever_happens_to_their_drivers() -> None:
    ends, duplicates, replaced = Counter[str](), 0, 0
    for seed in SEEDS:
        print("seed", seed)
        job = Simulation(seed)
        job.run()
        ends.update("cut" if each is None else each.status for each in job.finishes)
        replaced += len(job.replaced)
        attempts = job.ledger.job.attempts
        duplicates += sum(each.status == "scored" and not each.counts for each in attempts)
    # Each of these happened, so a broken promise would show.
    assert ends.keys() == {"cut", "completed", "drained", "stopped", "paused"}
    assert duplicates > 0
    assert replaced > 0


def test_a_simulated_job_is_the_same_for_the_same_seed() -> None:
    first, second = Simulation(7), Simulation(7)
    first.run()
    second.run()
    assert first.ledger.job.attempts == second.ledger.job.attempts
    assert first.finishes == second.finishes
