"""After a rollout: branch it, repeat it, look after what it kept."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = pytest.mark.timeout(300)

TASK = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks/book-the-review-room"


def book(request: ModelRequest) -> ModelReply:
    """Ask which event is meant, and change the one that the user names."""
    seen = request.tool_results
    if not seen:
        ask = {"question": "Which review with Dana?", "options": ["evt-10", "evt-11", "evt-12"]}
        return ModelReply(text="Only you can tell.", tools=(ToolUse("ask_user", ask),))
    if len(seen) == 1:
        room = "room-maple@harborlight.example"
        command = f"claw-gcal update evt-10 --add-attendee {room}"
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))
    return ModelReply(text="Booked.")


@dataclass(frozen=True, slots=True)
class Kept:
    """A rollout that was not forked, with all of its checkpoints, and its model."""

    directory: Path
    llm: ScriptedLlm


@pytest.fixture(scope="module")
def kept(bench_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    cwd = tmp_path_factory.mktemp("kept")
    with ScriptedLlm(book) as llm:
        endpoint = ("--agent", "policy", "--base-url", f"{llm.url}/v1", "--model", "scripted")
        made = bench_in(cwd, "run", TASK, *endpoint, "--keep", "all", "--json")
        yield Kept(cwd / made["directory"], llm)


def test_a_kept_fork_is_gone_on_from_with_changes_and_thrown_away(
    bench: Any, tmp_path: Path
) -> None:
    bench("run", TASK, "--agent", "oracle", "--branch", "ask-user", "--keep", "forks", "--json")
    [kept] = bench("checkpoint", "list", "--json")
    rollout, node = kept["rollout"], kept["node"]
    shown = bench("checkpoint", "show", rollout, node, "--json")
    assert shown["manifest"]["task_id"].endswith("book-the-review-room")

    again = bench("rollout", "branch", rollout, "--at", node, "--n", "2", "--json")
    assert [one["reward"] for one in again["rollouts"]] == [1.0, 1.0]
    assert again["value"]["n"] == 2
    events = (tmp_path / again["rollouts"][0]["directory"] / "events.jsonl").read_text()
    started = json.loads(events.splitlines()[0])
    assert started["meta"]["continued_from"]["rollout_id"] == rollout

    bench("checkpoint", "export", rollout, node, "--output", "taken/along", "--json")
    broken = bench(
        *("rollout", "branch", rollout, "--source", "taken/along"),
        *("--fault", "rm /usr/local/bin/claw-gcal", "--json"),
        code=1,
    )
    assert broken["rollouts"][0]["reward"] is None
    assert "127" in broken["rollouts"][0]["error"]["message"]

    assert bench("checkpoint", "gc", "--budget-mb", "0", "--dry-run", "--json") == [kept["id"]]
    bench("checkpoint", "gc", "--budget-mb", "0", "--json")
    assert bench("checkpoint", "list", "--json") == []


def test_a_kept_start_is_gone_on_from_by_who_is_shown_something_else(
    bench: Any, kept: Kept, tmp_path: Path
) -> None:
    skill = tmp_path / "skills" / "calendar-care" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: calendar-care\ndescription: Look twice.\n---\nLook twice.\n")
    start = ("rollout", "branch", kept.directory, "--at", "n0", "--json")
    before = len(kept.llm.requests)
    bench(*start, "--skills-dir", tmp_path / "skills")
    skilled = kept.llm.requests[before:]
    assert skilled
    assert all("calendar-care" in json.dumps(request.raw) for request in skilled)
    # The task's solution was never in that box: it is brought in for the oracle.
    [other] = bench(*start, "--agent", "oracle")["rollouts"]
    assert other["reward"] == 1.0


def test_a_replay_that_is_not_the_record_has_no_score_and_no_row(
    bench: Any, kept: Kept, tmp_path: Path
) -> None:
    edited = tmp_path / kept.directory.name
    shutil.copytree(kept.directory, edited, ignore=shutil.ignore_patterns("checkpoints"))
    (record,) = (edited / "model").rglob("*.jsonl")
    calls = [json.loads(line) for line in record.read_text().splitlines()]
    (said,) = [m for m in calls[1]["request"]["messages"] if m["role"] == "tool"]
    said["content"] = "another word"
    record.write_text("".join(json.dumps(call) + "\n" for call in calls))
    asked = len(kept.llm.requests)
    report = bench("rollout", "replay", edited, "--json", code=1)
    assert len(kept.llm.requests) == asked
    assert not report["same"]
    assert report["repeated_reward"] is None
    repeated = tmp_path / report["directory"]
    result = json.loads((repeated / "result.json").read_text())
    assert (result["status"], result["reward"]) == ("failed", None)
    assert (result["error"]["type"], result["error"]["boundary"]) == (
        "ReplayDivergedError",
        "snapshot",
    )
    assert (repeated / "trainer" / "verifiers.jsonl").read_text() == ""


def test_a_recorded_trajectory_is_repeated_without_a_model(bench: Any, forked_policy: Path) -> None:
    # Its model is gone: a call would fail.
    tree = bench("rollout", "tree", forked_policy, "--json")
    leaves = [one for one in tree["nodes"] if one["results"]]
    assert len(leaves) == 3
    for leaf in leaves:
        report = bench("rollout", "replay", forked_policy, "--leaf", leaf["id"], "--json")
        assert report["same"], report
        assert report["replayed_calls"] == 3
        assert report["reward"] == leaf["results"]["reward"]["reward"]
