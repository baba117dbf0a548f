"""However a directory grows, and however often the follower restarts: the index is the same."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from benchflow_dashboard.index import (
    RunQuery,
    StepQuery,
    read_page,
    read_totals,
    search_steps,
)
from benchflow_dashboard.index.database import IndexReaders, IndexWriter
from benchflow_dashboard.index.follow import Follower
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TABLES = {
    "runs": "SELECT * FROM runs ORDER BY job, name",
    "steps": "SELECT job, name, steps.seq, node, title, body FROM steps JOIN runs ON runs.id = run "
    "ORDER BY job, name, steps.seq",
    "follows": "SELECT job, name, log, result, position, lines, fold, follows.attempt, is_settled "
    "FROM follows JOIN runs ON runs.id = run ORDER BY job, name",
    "jobs": "SELECT name, status, is_live, planned, problem FROM jobs ORDER BY name",
    "cells": "SELECT job, task, agent, model, status, boundary, n, scored, round(total, 6), "
    "round(squares, 6), round(cost, 6), costs FROM cells ORDER BY 1, 2, 3, 4, 5, 6",
    "totals": "SELECT job, status, boundary, n, scored, round(total, 6), round(squares, 6), "
    "round(cost, 6), costs FROM totals ORDER BY 1, 2, 3",
    "facets": "SELECT kind, value, n FROM facets WHERE n <> 0 ORDER BY 1, 2",
    "words": "SELECT count(*) FROM step_words WHERE step_words MATCH 'alpha'",
}


def nobody(_inode: int, _written: float) -> bool:
    return False


def open_follower(index: Path, jobs: Path) -> tuple[IndexWriter, Follower]:
    writer = IndexWriter(index, jobs)
    return writer, Follower(writer, jobs, file_use=lambda: nobody)


def content(writer: IndexWriter) -> dict[str, list[tuple]]:
    found = {name: writer.rows(sql) for name, sql in TABLES.items()}
    found["runs"] = [row[1:] for row in found["runs"]]  # without the number of the row
    return found


def event(kind: str, seq: int, **fields: object) -> str:
    return json.dumps({"seq": seq, "ts": 1000.0 + seq, "kind": kind, **fields}) + "\n"


@st.composite
def logs(draw: st.DrawFn, task: str) -> str:
    """Draw the text of a log: a small tree, sometimes with lines that no version knows."""
    identity = {"slot": f"{task}#0", "attempt": draw(st.integers(1, 3)), "epoch": "1"}
    lines = [
        event(
            "rollout_started",
            0,
            rollout_id="r",
            task_id=task,
            root="n0",
            meta={"identity": identity},
        )
    ]
    nodes = ["n0"]
    for _ in range(draw(st.integers(0, 6))):
        seq, name = len(lines), f"n{len(nodes)}"
        match draw(st.sampled_from(["step", "score", "lost", "odd", "garbage", "usage"])):
            case "step":
                message = draw(
                    st.sampled_from(["alpha", "beta 'quoted' <b>", "ünïcode \u0000 end"])
                )
                step = {
                    "id": f"s{seq}",
                    "message": message,
                    "usage": {"input_tokens": 3, "output_tokens": 2},
                    "started_at": 1.0,
                    "finished_at": 2.0,
                }
                parent = draw(st.sampled_from(nodes))
                lines.append(event("step_finished", seq, node=name, parent=parent, step=step))
                nodes.append(name)
            case "score":
                reward = draw(st.sampled_from([0.0, 0.25, 1.0, -3.5, None]))
                result = {"reward": reward, "error": None if reward is not None else "no"}
                node = draw(st.sampled_from(nodes))
                lines.append(event("node_scored", seq, node=node, name="reward", result=result))
            case "lost":
                error = {"boundary": "sandbox", "type": "E", "message": "gone"}
                lines.append(event("node_failed", seq, node=name, parent="n0", error=error))
                nodes.append(name)
            case "usage":
                lines.append(event("usage_reported", seq, world="n0", node="n0", cost_usd=0.125))
            case "odd":
                lines.append(event("of_a_later_version", seq, x=[1, {"y": 2}]))
            case _:
                lines.append(draw(st.sampled_from(["{not json\n", "[]\n", "\n", '{"kind": 3}\n'])))
    if draw(st.booleans()):
        lines.append(event("rollout_finished", len(lines), status="completed", error=None))
    torn = draw(st.sampled_from(["", '{"seq": 99, "ki']))
    return "".join(lines) + torn


@st.composite
def results(draw: st.DrawFn, name: str, task: str) -> str | None:
    """Draw the text of `result.json`, `None` for a rollout without a result."""
    kind = draw(st.sampled_from(["none", "scored", "failed", "damaged"]))
    if kind == "none":
        return None
    if kind == "damaged":
        return '{"rollout_id": '
    error = {"boundary": "agent", "type": "AgentError", "message": f"404 from model {name}"}
    record = {
        "rollout_id": name,
        "task_id": task,
        "task_digest": "sha256:0",
        "agent": draw(st.sampled_from(["oracle", "nop"])),
        "model": None,
        "sandbox": "local",
        "status": "completed" if kind == "scored" else "failed",
        "reward": 0.5 if kind == "scored" else None,
        "error": None if kind == "scored" else error,
        "slot": f"{task}#0",
        "attempt": draw(st.integers(1, 3)),
        "finished_at": draw(st.floats(1000, 2000)),
    }
    return json.dumps(record)


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[tuple[str, str], tuple[str, str | None]], list]:
    """Draw the files of some rollouts, and the order in which pieces of them are written."""
    files = {}
    for number in range(draw(st.integers(1, 3))):
        job, task = draw(st.sampled_from(["", "nightly"])), draw(st.sampled_from(["t/a", "t/b"]))
        name = f"r{number}"
        files[job, name] = (draw(logs(task)), draw(results(name, task)))
    actions = st.one_of(
        st.tuples(st.just("append"), st.sampled_from(sorted(files)), st.integers(1, 400)),
        st.tuples(st.just("result"), st.sampled_from(sorted(files)), st.just(0)),
        st.tuples(st.just("replace"), st.sampled_from(sorted(files)), st.integers(0, 50)),
        st.tuples(st.just("delete"), st.sampled_from(sorted(files)), st.just(0)),
        st.tuples(st.sampled_from(["update", "restart"]), st.just(("", "")), st.just(0)),
    )
    return files, draw(st.lists(actions, max_size=16))


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_any_history_gives_the_same_index_as_a_reindex(history) -> None:
    files, actions = history
    with tempfile.TemporaryDirectory() as place:
        root, jobs = Path(place), Path(place, "jobs")
        jobs.mkdir()
        writer, follower = open_follower(root / "index.db", jobs)
        try:
            for action, (job, name), size in actions:
                directory = jobs / job / name
                log = directory / "events.jsonl"
                match action:
                    case "append":
                        have = log.stat().st_size if log.exists() else 0
                        write(log, files[job, name][0].encode()[have : have + size])
                    case "result" if files[job, name][1] is not None:
                        directory.mkdir(parents=True, exist_ok=True)
                        fresh = directory / ".result.json"
                        fresh.write_text(files[job, name][1])
                        fresh.rename(directory / "result.json")
                    case "replace":
                        # Another log under the same name, as after a copy from elsewhere.
                        other = root / "other"
                        other.write_bytes(files[job, name][0].encode()[:size])
                        directory.mkdir(parents=True, exist_ok=True)
                        other.rename(log)
                    case "delete":
                        shutil.rmtree(directory, ignore_errors=True)
                    case "restart":
                        writer.close()
                        writer, follower = open_follower(root / "index.db", jobs)
                    case _:
                        follower.update()
            follower.update()
            grown = content(writer)
            assert (
                writer.rows("INSERT INTO step_words (step_words) VALUES ('integrity-check')") == []
            )
        finally:
            writer.close()
        anew, follower = open_follower(root / "anew.db", jobs)
        follower.update()
        expected = content(anew)
        anew.close()
        for table, rows in expected.items():
            assert grown[table] == rows, table


def test_a_torn_line_waits_and_is_then_read_once(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    log = jobs / "r1" / "events.jsonl"
    line = event("step_finished", 1, node="n1", parent="n0", step=STEP).encode()
    write(log, event("rollout_started", 0, rollout_id="r", task_id="t/a", root="n0").encode())
    write(log, line[:30])
    writer, follower = open_follower(tmp_path / "index.db", jobs)
    follower.update()
    assert writer.rows("SELECT steps, problem FROM runs") == [(0, None)]
    write(log, line[30:])
    follower.update()
    follower.update()
    assert writer.rows("SELECT steps, problem FROM runs") == [(1, None)]
    writer.close()


STEP = {"id": "s", "message": "alpha omega", "started_at": 1.0, "finished_at": 2.0}


def test_a_line_that_is_not_an_event_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    log = jobs / "r1" / "events.jsonl"
    write(log, event("rollout_started", 0, rollout_id="r", task_id="t/a", root="n0").encode())
    write(log, b"{broken\n")
    write(log, event("step_finished", 2, node="n1", parent="n0", step=STEP).encode())
    writer, follower = open_follower(tmp_path / "index.db", jobs)
    follower.update()
    [(steps, problem)] = writer.rows("SELECT steps, problem FROM runs")
    assert steps == 1
    assert problem.startswith("line 2 of events.jsonl is not readable")
    writer.close()


def test_a_pipe_or_a_link_in_the_place_of_a_file_is_never_waited_for(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    (jobs / "r1").mkdir(parents=True)
    (jobs / "r2").mkdir()
    os.mkfifo(jobs / "r1" / "events.jsonl")
    (jobs / "r2" / "events.jsonl").symlink_to("/etc/hostname")
    os.mkfifo(jobs / "r2" / "result.json")
    writer, follower = open_follower(tmp_path / "index.db", jobs)
    follower.update()
    found = writer.rows("SELECT name, problem FROM runs ORDER BY name")
    assert [name for name, _ in found] == ["r1", "r2"]
    assert all("not readable" in problem for _, problem in found)
    writer.close()


def test_a_damaged_or_older_index_is_built_anew(tmp_path: Path) -> None:
    jobs, path = tmp_path / "jobs", tmp_path / "index.db"
    write(
        jobs / "r1" / "events.jsonl",
        event("rollout_started", 0, rollout_id="r", task_id="t/a", root="n0").encode(),
    )
    for damage in (b"not a database", None):
        writer, follower = open_follower(path, jobs)
        follower.update()
        assert len(writer.rows("SELECT 1 FROM runs")) == 1
        if damage is None:
            writer.run("UPDATE meta SET value = '0' WHERE key = 'schema'")
        writer.close()
        if damage is not None:
            path.write_bytes(damage)
    writer, follower = open_follower(path, jobs)
    follower.update()
    assert writer.rows("SELECT name FROM runs") == [("r1",)]
    assert writer.rows("SELECT value FROM meta WHERE key = 'schema'") != [("0",)]
    writer.close()


def test_a_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    first, _ = open_follower(tmp_path / "index.db", jobs)
    second = IndexWriter(tmp_path / "index.db", jobs)
    assert first.has_lock
    assert not second.has_lock
    second.close()
    first.close()
    third = IndexWriter(tmp_path / "index.db", jobs)
    assert third.has_lock
    third.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=9),
    st.sampled_from(["reward", "-reward", "when", "-when", "task", "steps", "-cost"]),
    st.integers(1, 4),
)
def test_pages_by_key_show_each_run_once_in_order(rewards, sort, size) -> None:
    with tempfile.TemporaryDirectory() as place:
        jobs = Path(place, "jobs")
        for number, reward in enumerate(rewards):
            record = {
                "rollout_id": f"r{number}",
                "task_id": f"t/{number % 2}",
                "task_digest": "",
                "agent": "a",
                "model": None,
                "sandbox": "local",
                "status": "completed" if reward is not None else "ungraded",
                "reward": reward,
                "steps": number % 3,
                "finished_at": 100.0 + number % 4,
            }
            write(jobs / "j" / f"r{number}" / "result.json", json.dumps(record).encode())
        writer, follower = open_follower(Path(place, "index.db"), jobs)
        follower.update()
        writer.close()
        readers = IndexReaders(Path(place, "index.db"))
        query = RunQuery(sort=sort)
        with readers.session() as session:
            totals = read_totals(session, query)
            whole = read_page(session, query, totals.n, size=100).runs
            seen, pages, after = [], [], ""
            while True:
                page = read_page(session, query.with_(after=after), totals.n, size=size)
                pages.append(page)
                seen += page.runs
                if page.next is None:
                    break
                after = page.next
            assert seen == list(whole)
            assert {run.id for run in seen} == {f"r{n}" for n in range(len(rewards))}
            back = []
            before = pages[-1].previous
            while before is not None:
                page = read_page(session, query.with_(before=before), totals.n, size=size)
                back = [*page.runs, *back]
                before = page.previous
            assert [*back, *pages[-1].runs] == list(whole)
            scored = [reward for reward in rewards if reward is not None]
            assert totals.scored == len(scored)
            assert totals.failed == len(rewards) - len(scored)
            if scored:
                assert abs(totals.mean - sum(scored) / len(scored)) < 1e-9
        readers.close()


def test_a_search_ranks_steps_and_takes_words_never_syntax(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    log = jobs / "r1" / "events.jsonl"
    write(log, event("rollout_started", 0, rollout_id="r", task_id="t/a", root="n0").encode())
    for seq, message in enumerate(("alpha alpha alpha", "alpha beta", "gamma"), 1):
        step = {**STEP, "id": f"s{seq}", "message": message}
        write(log, event("step_finished", seq, node=f"n{seq}", parent="n0", step=step).encode())
    writer, follower = open_follower(tmp_path / "index.db", jobs)
    follower.update()
    writer.close()
    readers = IndexReaders(tmp_path / "index.db")
    with readers.session() as session:
        for words, nodes in (("alpha", ["n1", "n2"]), ("beta alpha", ["n2"]), ("title:alpha", [])):
            found = search_steps(session, StepQuery(q=words))
            assert [hit.node for hit in found.hits] == nodes
        for words in ("a OR", "NEAR(a", "-alpha", "((a", "a*", "alpha\x00beta", ""):
            search_steps(session, StepQuery(q=words))
    readers.close()
