"""What it costs to ask the facts of a job with 1,000,000 steps, in CPU seconds."""

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchflow_analysis import Facts, query, write_parquet
from report import emit

ROLLOUTS, STEPS = 20_000, 50
RUNS = 5
LIMITS = {"parquet": 0.3, "jsonl": 2.0}
QUESTIONS = {
    # Of one metric for each step.
    "metrics": """
        SELECT variant, name, count(*), avg(value), quantile_cont(value, 0.95)
        FROM metrics_long GROUP BY variant, name
    """,
    # Of one event for each step, with about 300 bytes of text.
    "events": """
        SELECT variant, kind, count(*), quantile_cont(seq, 0.95)
        FROM events JOIN (SELECT "index", variant FROM trials) USING ("index")
        GROUP BY variant, kind
    """,
    # The same, with a number inside the JSON of the event: without a limit.
    "events_json": """
        SELECT kind, quantile_cont((data->>'seconds')::DOUBLE, 0.95) FROM events GROUP BY kind
    """,
    "win_loss_tie": "FROM win_loss_tie",
}


def write_facts(job: Path) -> None:
    """Write a paired job: two variants, 100 tasks, 100 repeats, 50 steps each."""
    rng, facts = random.Random(1), job / "facts"
    facts.mkdir(parents=True)
    words = ["".join(rng.choices("abcdefgh \n", k=260)) for _ in range(1000)]
    with ExitStack() as stack:
        trials, metrics, events = (
            stack.enter_context((facts / f"{name}.jsonl").open("w"))
            for name in ("trials", "metrics_long", "events")
        )
        for index in range(ROLLOUTS):
            slot = {"job": job.name, "index": index, "slot": f"slot-{index}"}
            place = {
                **slot,
                "variant": f"variant-{index % 2}",
                "task": f"organisation/task-{index // 2 % 100}",
                "repeat": index // 200,
            }
            reward = float(rng.random() < 0.5)
            result = {"attempt": 1, "status": "completed", "reward": reward, "scored": True}
            trials.write(json.dumps({**place, **result}) + "\n")
            for step in range(STEPS):
                metric = {"name": f"step.{step % 8}", "value": rng.random()}
                metrics.write(json.dumps({**place, **metric}) + "\n")
                data = {"text": rng.choice(words), "seconds": rng.random()}
                event = {"attempt": 1, "seq": step, "kind": f"kind-{step % 8}", "data": data}
                events.write(json.dumps({**slot, **event}) + "\n")
    (facts / "run_manifest.json").write_text(json.dumps({"job": job.name, "slots": ROLLOUTS}))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the user and system seconds of `work`, of all threads."""
    before = os.times()
    work()
    after = os.times()
    return after.user + after.system - before.user - before.system


def ask(job: Path, sql: str) -> None:
    with Facts([job]) as facts:
        assert query(facts, sql).rows


def main() -> int:
    """Print a line for each format and question; fail above a limit."""
    directory = Path(tempfile.mkdtemp(prefix="bf-perf-"))
    missed = 0
    try:
        job = directory / "job"
        write_facts(job)
        size = sum(path.stat().st_size for path in (job / "facts").iterdir())
        for form, limit in reversed(LIMITS.items()):
            if form == "parquet":
                emit(
                    "analysis.write_parquet",
                    [cpu_seconds(lambda: write_parquet(job))],
                    unit="cpu_s",
                )
            for name, sql in QUESTIONS.items():
                samples = [cpu_seconds(lambda sql=sql: ask(job, sql)) for _ in range(RUNS)]
                found = emit(
                    f"analysis.{name}.{form}",
                    samples,
                    unit="cpu_s",
                    limit=None if name == "events_json" else limit,
                    steps=ROLLOUTS * STEPS,
                    jsonl_mb=size >> 20,
                )
                missed += found > limit and name != "events_json"
    finally:
        shutil.rmtree(directory)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
