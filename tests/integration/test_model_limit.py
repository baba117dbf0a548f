"""A job whose model endpoint throttles: a real gateway, a real agent and a scripted model."""

import asyncio
import threading
from pathlib import Path

import pytest
from benchflow_jobs import JobConfig, JobReport, job_view, run_job
from benchflow_jobs.job_record import DatabaseRecord
from benchflow_store import read_records
from benchflow_store.database import verify
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = pytest.mark.timeout(180)

TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/book-the-review-room"
REPEATS = 9
ASK = {"question": "Which review with Dana?", "options": ["evt-10", "evt-11", "evt-12"]}
BOOK = "claw-gcal update evt-11 --add-attendee room-maple@harborlight.example"


class Throttles:
    """Answers 429 to the first `count` calls, then solves the task."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()

    def __call__(self, request: ModelRequest) -> ModelReply:
        with self._lock:
            self._left -= 1
            if self._left >= 0:
                return ModelReply(text="slow down", status=429)
        done = len(request.tool_results)
        calls = (ToolUse("ask_user", ASK), *[ToolUse("shell", {"command": BOOK})] * 2)
        return ModelReply(tools=(calls[done],)) if done < len(calls) else ModelReply(text="Done.")


def run(tmp_path: Path, llm: ScriptedLlm) -> JobReport:
    backoff = {"BENCHFLOW_POLICY_BACKOFF": "0.1"}
    agent = {"name": "policy", "model": "scripted", "env": backoff}
    config = JobConfig.model_validate(
        {
            "job": {"name": "j", "jobs_dir": tmp_path},
            "dataset": {"paths": (str(TASK),)},
            "design": {"replications": REPEATS},
            "run": {"agent": agent, "model": {"base_url": f"{llm.url}/v1"}},
            "concurrency": {"slots": 4},
            "evidence": {"store": True},
        }
    )
    return asyncio.run(run_job(config))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The limits that the answers set, in order."""
    seen: list[int | None] = []
    note = DatabaseRecord.note_model_limit

    def noting(record: DatabaseRecord, url: str, limit: int | None) -> None:
        seen.append(limit)
        note(record, url, limit)

    monkeypatch.setattr(DatabaseRecord, "note_model_limit", noting)
    return seen


def test_the_limit_shrinks_and_grows_again_and_no_slot_is_lost(
    tmp_path: Path, limits: list[int | None]
) -> None:
    with ScriptedLlm(Throttles(6)) as llm:
        report = run(tmp_path, llm)
        url = f"{llm.url}/v1"
    assert (report.status, report.scored, report.planned) == ("completed", REPEATS, REPEATS)
    assert {record.reward for record in read_records(tmp_path / "j")} == {1.0}
    assert limits[0] is not None and limits[0] < 4
    assert limits[-1] == 4
    assert job_view(tmp_path / "j").model_limits == {url: 4}
    check = verify(tmp_path / "j")
    assert check.ok
    # Of each rollout at least the configuration, the prompts, the summary, the tree and a log.
    assert check.artifacts >= 4 * REPEATS
    events = (tmp_path / "j" / "facts" / "events.jsonl").read_text()
    assert events.count('"node_scored"') == REPEATS
