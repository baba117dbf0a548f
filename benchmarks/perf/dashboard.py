"""Measures the list of runs and the search: CPU time of the server, and bytes of the first view.

Goals: first page of 10,000 runs within 150 ms and 120 kB gzipped with all files; first page of
100,000 runs within 20 ms of the server's CPU time; a search over 1,000,000 steps within 300 ms. Our
own bounds for reports of one job of 100,000 runs: 2 s of CPU time after a change, else 20 ms.
Rows are made without logs: what is measured is the index and the page.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index
from benchflow_dashboard.index.counted_rows import write_run
from benchflow_dashboard.index.database import IndexWriter
from benchflow_dashboard.index.run_row import UNSCORED_KEY, RunRow
from litestar import Litestar
from litestar.testing import TestClient
from report import emit

PATHS = {
    "first page": "/runs",
    "worst first": "/runs?sort=reward",
    "one job": "/runs?job=job-3",
    "unscored": "/runs?status=unscored",
    "one task": "/runs?task=bench%2Ftask-7",
    "failures": "/failures",
}
REPORTS = {
    "comparison": "/jobs/big/compare",
    "job": "/jobs/big",
    "cost": "/cost",
}
"""Pages that count over all rollouts of a job: kept until the index changes."""
GOAL_MS = {10_000: 150.0, 100_000: 20.0}
GOAL_BYTES = 120_000
GOAL_SEARCH_MS = 300.0
GOAL_REPORT_MS = {"counted": 2_000.0, "kept": 20.0}
BIG_JOB = """INSERT OR REPLACE INTO jobs
(name, status, is_live, planned, pending, variants, created, files, mark)
VALUES ('big', 'unknown', 0, 0, 0, '["a","b"]', 1.7e9, '{}', '{}')"""
WORDS = [f"w{number}" for number in range(50_000)]
SEARCHES = {
    "most frequent word": "q=w0",
    "frequent word": "q=w30",
    "rare word": "q=w40000",
    "two frequent words": "q=w0+w1",
    "phrase": "q=%22w0+w1%22",
    "frequent word, one job": "q=w0&job=job-3",
    "frequent word, one task": "q=w0&task=bench%2Ftask-7",
    "frequent word, failed": "q=w0&status=failed",
    "frequent word, no such job": "q=w0&job=none",
}
"""Words are as frequent as in texts: the word `wN` has a share of 1 / (N + 1)."""


def fill(path: Path, jobs_dir: Path, rows: int) -> None:
    writer = IndexWriter(path, jobs_dir)
    with writer.transaction():
        for number in range(rows):
            failed = number % 17 == 0
            reward = None if failed else (number * 7 % 101) / 100
            row = RunRow(
                name=f"task-{number % 120}__{number:08x}",
                job=f"job-{number % 40}",
                slot=f"bench/task-{number % 120}#{number}",
                task=f"bench/task-{number % 120}",
                agent="oracle",
                sandbox="local",
                status="failed" if failed else "completed",
                reason="agent: 404 from the model endpoint" if failed else None,
                boundary="agent" if failed else "",
                fingerprint="0123456789ab" if failed else None,
                reward=reward,
                paid=reward,
                leaves=3,
                scored=3,
                steps=number % 30,
                started=1.7e9 + number,
                finished=1.7e9 + number + 60,
                seconds=60.0,
                is_final=not failed,
                reward_key=UNSCORED_KEY if reward is None else reward,
            )
            write_run(writer, row, None, {})
    writer.close()


def join_runs(path: Path) -> None:
    """Make all rollouts those of one job with two variants."""
    with closing(apsw.Connection(str(path))) as db, db:
        db.execute("UPDATE runs SET job = 'big', variant = char(97 + id % 2), is_current = 1")
        db.execute(BIG_JOB)


def fill_steps(path: Path, jobs_dir: Path, steps: int, runs: int) -> None:
    """Write steps of 30 words, in the order of their runs."""
    rng, total, shares = random.Random(1), 0.0, list[float]()
    for number in range(len(WORDS)):
        total += 1 / (number + 1)
        shares.append(total)
    writer = IndexWriter(path, jobs_dir)
    with writer.transaction():
        for number in range(steps):
            words = rng.choices(WORDS, cum_weights=shares, k=32)
            title, body = " ".join(words[:2]), " ".join(words[2:])
            writer.run(
                "INSERT INTO steps (run, seq, node, title, body) VALUES (?, ?, ?, ?, ?)",
                (number * runs // steps + 1, number, f"n{number % 20}", title, body),
            )
            writer.run(
                "INSERT INTO step_words (rowid, title, body) VALUES (last_insert_rowid(), ?, ?)",
                (title, body),
            )
    writer.close()


def measure_search(client: TestClient[Litestar], steps: int, times: int) -> bool:
    is_good = True
    for name, query in SEARCHES.items():
        began = time.perf_counter()
        taken, size = measure(client, f"/search?{query}", times)
        wall = (time.perf_counter() - began) * 1000 / (times + 1)
        bound = GOAL_SEARCH_MS if steps >= 1_000_000 else None
        title = f"dashboard search of {steps} steps: {name}"
        facts = {"bound": bound, "gzip": size, "mean_wall_ms": round(wall, 1)}
        median = emit(title, taken, unit="cpu_ms", **facts)
        is_good &= bound is None or median <= bound
    return is_good


def measure(client: TestClient[Litestar], url: str, times: int) -> tuple[list[float], int]:
    """Return the CPU times of the requests in ms, and the bytes of the last answer."""
    client.get(url)
    taken: list[float] = []
    size = 0
    for _ in range(times):
        began = time.process_time()
        answer = client.get(url)
        taken.append((time.process_time() - began) * 1000)
        assert answer.status_code == 200
        size = int(answer.headers["content-length"])
    return taken, size


def first_view_bytes(client: TestClient[Litestar]) -> int:
    """Return the gzipped bytes of the page and of each file that it names."""
    answer = client.get("/runs")
    total = int(answer.headers["content-length"])
    styles = client.get("/static/app.css").text
    for part in (*answer.text.split('"'), *styles.split('"')):
        if part.startswith("/static/"):
            total += int(client.get(part).headers["content-length"])
    return total


@contextmanager
def site(rows: int, steps: int = 0) -> Generator[tuple[TestClient[Litestar], Path]]:
    """Yield a client of a dashboard with `rows` runs and `steps` steps, and its index."""
    with tempfile.TemporaryDirectory() as place:
        jobs_dir, path = Path(place, "jobs"), Path(place, "index.db")
        jobs_dir.mkdir()
        fill(path, jobs_dir, rows)
        fill_steps(path, jobs_dir, steps, rows)
        settings = DashboardSettings(jobs_dir=jobs_dir, index=path)
        index = Index(path, jobs_dir)
        # Without its thread: the rows of this benchmark have no files.
        index.watcher.start = lambda: None
        app = create_app(settings, index=index)
        with TestClient(app, base_url="http://127.0.0.1:8642") as client:
            yield client, path


def measure_runs(client: TestClient[Litestar], rows: int, times: int) -> bool:
    is_good = True
    for name, url in PATHS.items():
        taken, size = measure(client, url, times)
        bound = GOAL_MS.get(rows) if name == "first page" else None
        title = f"dashboard {rows} runs: {name}"
        median = emit(title, taken, unit="cpu_ms", bound=bound, gzip=size)
        is_good &= bound is None or median <= bound
    total = first_view_bytes(client)
    emit(f"dashboard {rows} runs: first view", [total], unit="bytes", bound=GOAL_BYTES)
    return is_good and total <= GOAL_BYTES


def measure_reports(client: TestClient[Litestar], path: Path, rows: int, times: int) -> bool:
    """Measure each report of one job: when the index has changed, and when it has not."""
    join_runs(path)
    is_good = True
    for name, url in REPORTS.items():
        counted: list[float] = []
        for number in range(3):
            with closing(apsw.Connection(str(path))) as db:
                db.execute("UPDATE jobs SET created = ?", (1.7e9 + len(name) + number,))
            began = time.process_time()
            assert client.get(url).status_code == 200
            counted.append((time.process_time() - began) * 1000)
        kept, size = measure(client, url, times)
        for state, taken in {"counted": counted, "kept": kept}.items():
            bound = GOAL_REPORT_MS[state] if rows == 100_000 else None
            title = f"dashboard, a job of {rows} runs: {name}, {state}"
            median = emit(title, taken, unit="cpu_ms", bound=bound, gzip=size)
            is_good &= bound is None or median <= bound
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the search")
    parser.add_argument("--times", type=int, default=30)
    options = parser.parse_args()
    is_good = True
    for rows in options.rows:
        with site(rows) as (client, path):
            is_good &= measure_runs(client, rows, options.times)
            is_good &= measure_reports(client, path, rows, options.times)
    if options.steps:
        with site(options.steps // 20, options.steps) as (client, _):
            is_good &= measure_search(client, options.steps, options.times)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
