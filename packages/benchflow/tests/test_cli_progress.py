"""The progress of a job on standard error: a table, plain lines, or JSON."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from benchflow.cli.job_progress import ProgressTracker, summary
from benchflow.cli.live import LiveJob, ProgressForm
from benchflow.cli.live_table import LiveTable, summary_text
from benchflow_contracts import Completion, NodeError, RolloutRecord
from benchflow_jobs.budget import Budget
from benchflow_jobs.job_record import JobLimits
from benchflow_store.database import PlannedSlot
from benchflow_store.progress import span
from rich.console import Console

HOSTILE = "evil\x1b[2J\u202e\nname"
URL = "http://user:s3cret@127.0.0.1:8000/v1"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def slot(number: int, variant: str = "default") -> PlannedSlot:
    task = f"task-{number}"
    return PlannedSlot(
        name=f"{task}#0", variant=variant, task=task, repeat=0, task_digest="sha256:0"
    )


def record(number: int, reward: float | None = 1.0) -> RolloutRecord:
    values = {
        "rollout_id": f"r{number}",
        "task_id": f"task-{number}",
        "status": "completed",
        "reward": reward,
    }
    return RolloutRecord.model_construct(**values)


def limits(
    slots: int = 2,
    pauses: Mapping[str, str] | None = None,
    ending: str = "",
    budget: Budget | None = None,
    endpoints: Mapping[str, int] | None = None,
    throttled: frozenset[str] = frozenset(),
) -> JobLimits:
    return JobLimits(
        {"slots": slots}, endpoints or {}, throttled, pauses or {}, ending, budget or Budget()
    )


def completion(number: int, error: NodeError | None = None, **measured: float) -> Completion:
    return Completion(
        job="j",
        index=number,
        slot=f"task-{number}#0",
        attempt=1,
        epoch=1,
        rollout=f"r{number}",
        status="scored" if error is None else "unscored",
        error=error,
        measured=measured,
    )


def failed(boundary: Any) -> NodeError:
    return NodeError(boundary=boundary, type="Error", message="m")


@pytest.fixture
def job() -> ProgressTracker:
    """A job of ten rollouts, two at a time."""
    progress = ProgressTracker(Clock())
    progress.planned("j", [slot(number) for number in range(10)], {})
    progress.limited(limits())
    return progress


def run_pair(job: ProgressTracker, first: int, seconds: tuple[float, float]) -> None:
    clock: Any = job.clock
    for number in (first, first + 1):
        job.started(slot(number))
    began = clock.now
    for number, duration in sorted(
        zip((first, first + 1), seconds, strict=True), key=lambda x: x[1]
    ):
        clock.now = began + duration
        job.finished(slot(number), record(number, float(number % 2)))


def test_nothing_is_estimated_before_three_rollouts_have_ended(job: ProgressTracker) -> None:
    run_pair(job, 0, (10, 20))
    assert (job.eta(), job.rate()) == (None, None)
    assert not any("ETA" in part or "/min" in part for part in summary(job))
    run_pair(job, 2, (10, 20))
    assert job.rate() == 4 / 40
    assert "6.0/min" in summary(job)


def test_the_eta_comes_from_the_durations_and_the_concurrency_in_force(
    job: ProgressTracker,
) -> None:
    run_pair(job, 0, (10, 10))
    run_pair(job, 2, (10, 10))
    assert job.eta() == (6 * 10 / 2, 0)
    job.started(slot(4))
    job.started(slot(5))
    job.clock.now += 4  # type: ignore[attr-defined]
    assert job.eta() == ((6 * 10 - 8) / 2, 0)
    job.limited(limits(slots=1))
    assert job.eta() == (6 * 10 - 8, 0)


def test_durations_that_differ_widen_the_eta(job: ProgressTracker) -> None:
    run_pair(job, 0, (10, 30))
    run_pair(job, 2, (10, 30))
    eta = job.eta()
    assert eta is not None
    assert eta[0] == 6 * 20 / 2
    # The standard deviation is 11.5; 6 durations, whose mean is known from 4.
    assert eta[1] == pytest.approx(2 * 11.547 * (6 + 36 / 4) ** 0.5 / 2, rel=1e-3)


@pytest.mark.parametrize(
    "held", [limits(pauses={"the job": ""}), limits(ending="interrupted by SIGINT")]
)
def test_a_job_that_starts_nothing_has_no_eta(job: ProgressTracker, held: JobLimits) -> None:
    run_pair(job, 0, (10, 10))
    run_pair(job, 2, (10, 10))
    job.limited(held)
    assert job.eta() is None


def test_earlier_runs_count_for_the_reward_and_not_for_the_durations() -> None:
    job = ProgressTracker(Clock())
    job.planned("j", [slot(number) for number in range(8)], {0: 1.0, 1: 0.0, 2: 1.0, 3: 1.0})
    assert (job.done, job.total, job.eta()) == (4, 8, None)
    assert "reward 0.75 [0.30, 0.95]" in summary(job)


def test_each_variant_has_its_own_mean() -> None:
    job = ProgressTracker(Clock())
    job.planned("j", [slot(0, "small"), slot(1, "large")], {0: 1.0, 1: 0.0})
    shown = summary(job)
    assert [part[:10] for part in shown] == ["small 1.00", "large 0.00"]


def test_costs_and_errors_of_all_attempts_are_counted(job: ProgressTracker) -> None:
    job.limited(limits(budget=Budget(cost_usd=5, used_usd=1)))
    job.attempted(completion(0, cost_usd=0.25, tokens_in=1_200_000, tokens_out=34_000))
    for boundary in ("sandbox", "agent", "sandbox"):
        job.attempted(completion(1, failed(boundary)))
    shown = summary(job)
    assert "errors: sandbox 2, agent 1" in shown
    assert "1.25 of 5 USD" in shown
    assert "1.23M tokens" in shown


@pytest.mark.parametrize("width", [80, 40])
def test_nothing_important_is_cut_and_hostile_text_is_escaped(
    job: ProgressTracker, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    run_pair(job, 0, (10, 20))
    run_pair(job, 2, (10, 20))
    job.attempted(completion(1, failed("environment"), cost_usd=1.5, tokens_in=120_000))
    job.started(slot(5))
    job.started(PlannedSlot(HOSTILE, "default", HOSTILE, 0, "sha256:0")).progress.last = HOSTILE
    job.limited(
        limits(
            pauses={"variant 'large'": f"5 times running: {HOSTILE}"},
            budget=Budget(cost_usd=50, used_usd=12.5, used_tokens=120_000),
            endpoints={URL: 8},
            throttled=frozenset({URL}),
        )
    )
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(LiveTable(job))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    text = " ".join(shown.split())
    for part in (
        "4/10",
        "6.0/min",
        "ETA 45 s ±",
        "reward 0.50 [0.15, 0.85]",
        "errors: environment 1",
        "12.5 of 50 USD",
        "120k tokens",
        "2 at once",
        "8 at http://127.0.0.1:8000/v1, which throttles",
        "paused variant 'large': 5 times running: evil\\x1b[2J\\u202e name",
        "task-5 setup 0 steps 0s",
    ):
        assert part in text
    assert "s3cret" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "…" not in summary_text(job, width).plain


def test_a_throttled_endpoint_is_news_when_its_limit_falls(job: ProgressTracker) -> None:
    news = [
        job.limited(limits(endpoints={URL: limit}, throttled=frozenset({URL})))
        for limit in (4, 2, 3, 4, 4)
    ]
    texts = [f"limits: 2 at once, {n} at http://127.0.0.1:8000/v1, which throttles" for n in (4, 2)]
    assert news == [[texts[0]], [texts[1]], [], [], []]


def play(listener: LiveJob) -> None:
    slots = [slot(0), slot(1)]
    listener.planned("j", slots, {})
    listener.limited(limits())
    for number, each in enumerate(slots):
        listener.started(each)
        listener.attempted(each, completion(number))
        listener.finished(each, record(number))
    listener.limited(limits(pauses={"the job": f"look (by {HOSTILE})"}))
    listener.limited(limits(slots=8))
    listener.extended(3)
    listener.limited(limits(slots=8, ending="interrupted by SIGINT"))
    listener.say("no further rollout starts")


def test_without_a_terminal_each_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveJob() as live:
        play(live)
    lines = [re.sub(r"\d+\.\d+s", "0.0s", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "[1/2] task-0  reward 1  0 steps  0.0s  completed",
        "[2/2] task-1  reward 1  0 steps  0.0s  completed",
        "paused the job: look (by evil\\x1b[2J\\u202e",
        "name)",
        "resumed the job",
        "limits: 8 at once",
        "extended: the job has 3 rollouts",
        "nothing more starts: interrupted by SIGINT",
        "no further rollout starts",
    ]


def test_a_quiet_job_says_only_what_people_must_know(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveJob(quiet=True) as live:
        play(live)
    assert capsys.readouterr().err == "no further rollout starts\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_the_form_json_is_one_object_for_each_event(
    capsys: pytest.CaptureFixture[str], *, quiet: bool
) -> None:
    form: ProgressForm = "json"
    with LiveJob(quiet=quiet, form=form) as live:
        play(live)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.isascii()
    events = [json.loads(line) for line in shown.err.splitlines()]
    assert [each["event"] for each in events] == [
        "planned",
        "limits",
        *("started", "attempted", "finished") * 2,
        "limits",
        "limits",
        "extended",
        "limits",
        "message",
    ]
    assert (events[4]["slot"], events[4]["reward"], events[4]["done"]) == ("task-0#0", 1.0, 1)
    assert events[8]["changes"] == [f"paused the job: look (by {HOSTILE})"]
    assert events[-2]["in_force"] == ["8 at once", "nothing more starts: interrupted by SIGINT"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (90, "1.5 min"), (1200, "20 min"), (5400, "1.5 h"), (2e5, "2.3 d")],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_live_job_needs_no_database_of_the_analysis() -> None:
    code = (
        "import sys; from benchflow.cli.live import LiveJob;"
        "from benchflow_analysis.statistics.estimates import mean_estimate;"
        "assert 'duckdb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
