"""Facts, evidence lists and runtime files follow from the database, byte for byte."""

import asyncio
import errno
import json
import shutil
from collections import Counter
from pathlib import Path

import apsw
import pytest
from benchflow_contracts import StoreError
from benchflow_store.database import (
    PROJECTED_FILES,
    UNCOMPARED,
    DamagedDatabaseError,
    DiskFullError,
    JobIsRunningError,
    JobReader,
    JobWriter,
    LocalEvidenceStore,
    MetricTotal,
    Projector,
    RunControl,
    StaleWriterError,
    comparable,
    gc,
    lock_job,
    migrate,
    project,
    projection,
    rebuild,
    verify,
)
from job_records import PLAN, ended, planned


def make_job(directory: Path, *, shift: int = 0) -> None:
    """Run a job of 6 slots: 4 scored, 1 failed, 1 pending. `shift` changes times and ids."""

    async def run() -> None:
        store = LocalEvidenceStore(directory / "artifacts")
        async with JobWriter(directory / "record.db", "job") as writer:
            await writer.begin(PLAN, planned(6), now=1.0 + shift)
            for index in (3, 0, 1):
                commit = ended(index, rollout=f"task-{index // 2}__{shift}{index}", rows=0)
                object.__setattr__(commit, "started", 10.0 + shift)
                object.__setattr__(commit, "refs", ())
                await writer.commit(commit)
            await writer.commit(ended(2, scored=False, last=True, rows=0))
            await store.put(b"no row names this")
            await writer.set_control(RunControl(status="paused", updated=2.0))
            await writer.commit(ended(5, rows=0))

    directory.mkdir(exist_ok=True)
    asyncio.run(run())


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    make_job(tmp_path / "job")
    rebuild(tmp_path / "job")
    return tmp_path / "job"


def test_the_facts_show_the_resolved_leading_slots(job: Path) -> None:
    trials = lines(job / "facts/trials.jsonl")
    assert [(row["index"], row["status"], row["reward"]) for row in trials] == [
        (0, "completed", 1.0),
        (1, "completed", 1.0),
        (2, "failed", None),
        (3, "completed", 1.0),
    ]
    assert trials[2]["error_type"] == "CapacityError"
    assert [row["variant"] for row in trials] == ["a", "b", "a", "b"]
    metrics = lines(job / "facts/metrics_long.jsonl")
    assert {(row["name"], row["value"], row["measured"]) for row in metrics} == {
        ("reward", 1.0, False),
        ("tokens_in", 100.0, True),
    }
    assert (trials[0]["tokens_in"], trials[0]["cost_usd"]) == (100, None)
    variants = lines(job / "facts/variant_snapshots.jsonl")
    assert [(row["variant"], row["config"]) for row in variants] == [
        ("a", {"model": "m1"}),
        ("b", {}),
    ]


def test_the_runtime_files_show_the_state_and_the_schedule(job: Path) -> None:
    control = json.loads((job / "runtime/run_control.json").read_text())
    assert (control["schema_version"], control["status"]) == ("run_control_v2", "paused")
    progress = json.loads((job / "runtime/schedule_progress.json").read_text())
    assert (progress["total_slots"], progress["next_schedule_index"]) == (6, 4)
    assert [each["schedule_index"] for each in progress["completed_slots"]] == [0, 1, 2, 3, 5]
    assert progress["consecutive_failures"] == {"a": 1, "b": 0}


def test_deleted_and_damaged_files_are_written_again_with_the_same_bytes(job: Path) -> None:
    before = {name: (job / name).read_bytes() for name in PROJECTED_FILES}
    assert rebuild(job).changed == ()
    shutil.rmtree(job / "facts")
    events = job / "evidence/attempts.jsonl"
    events.write_bytes(events.read_bytes()[:-7])
    report = verify(job)
    assert report.files["facts/trials.jsonl"] == "missing"
    assert report.files["evidence/attempts.jsonl"] == "behind"
    assert not report.ok
    assert set(rebuild(job).changed) >= {"facts/trials.jsonl", "evidence/attempts.jsonl"}
    assert {name: (job / name).read_bytes() for name in PROJECTED_FILES} == before


def test_two_runs_differ_only_in_the_named_columns(job: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_job(other, shift=50)
    rebuild(other)
    for name in UNCOMPARED:
        rows = [comparable(name, lines(home / name)) for home in (job, other)]
        assert rows[0] == rows[1], name
    assert (job / "facts/trials.jsonl").read_bytes() != (other / "facts/trials.jsonl").read_bytes()


def test_a_trial_that_resumed_equals_one_that_did_not(job: Path) -> None:
    name = "facts/trials.jsonl"
    whole = lines(job / name)
    resumed = [{**line, "began_from": {"point": "grading"}} for line in whole]
    assert comparable(name, resumed) == comparable(name, whole)


def test_an_interrupted_projection_continues_where_it_was(job: Path) -> None:
    before = (job / "facts/trials.jsonl").read_bytes()
    with (job / "facts/trials.jsonl").open("ab") as file:
        file.write(b'{"index": 4, "torn')
    assert Projector(job, job / "record.db").update() == 4
    assert (job / "facts/trials.jsonl").read_bytes() == before


def test_a_projection_that_failed_half_way_is_repeated(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (job / name).read_bytes() for name in PROJECTED_FILES}
    shutil.rmtree(job / "facts")
    (job / "runtime/projection.json").unlink()
    projector = Projector(job, job / "record.db")
    with monkeypatch.context() as patch:
        patch.setattr(projection, "_replace", full)
        with pytest.raises(DiskFullError):
            projector.update()
    assert projector.update() == 4
    assert {name: (job / name).read_bytes() for name in PROJECTED_FILES} == before


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_verify_finds_nothing_wrong_then_a_missing_artifact(job: Path) -> None:
    assert verify(job).ok

    async def name_one() -> None:
        async with JobWriter(job / "record.db", "job") as writer:
            await writer.begin()
            await writer.commit(ended(4, rows=1))

    asyncio.run(name_one())
    rebuild(job)
    report = verify(job)
    assert (report.artifacts, len(report.problems)) == (1, 1)
    assert "artifact" in report.problems[0]


def test_gc_deletes_only_what_no_row_names(job: Path) -> None:
    folder = job / "artifacts/sha256/ab"
    folder.mkdir(parents=True)
    (folder / ".tmp-0123").write_bytes(b"half")
    assert len(gc(job, dry_run=True).deleted) == 1
    report = gc(job)
    assert (report.kept, len(report.deleted), report.unfinished) == (0, 1, 1)
    assert gc(job).deleted == ()
    with lock_job(job), pytest.raises(JobIsRunningError):
        gc(job)


def test_migrate_of_a_current_database_changes_nothing(job: Path) -> None:
    report = migrate(job)
    assert report.before == report.after == 1


def read_all(job: Path) -> dict[str, bytes]:
    return {name: (job / name).read_bytes() for name in PROJECTED_FILES}


@pytest.mark.parametrize("fault", ["deleted", "cut", "linked", "grown"])
def test_a_running_projector_repairs_a_file_that_another_process_changed(
    job: Path, tmp_path: Path, fault: str
) -> None:
    before, path = read_all(job), job / "facts/trials.jsonl"
    projector, foreign = Projector(job, job / "record.db"), tmp_path / "foreign"
    foreign.write_bytes(before["facts/trials.jsonl"] + b"of somebody else")
    projector.update()
    if fault == "grown":
        path.write_bytes(foreign.read_bytes())
    elif fault == "cut":
        path.write_bytes(before["facts/trials.jsonl"][:10])
    else:
        path.unlink()
    if fault == "linked":
        path.symlink_to(foreign)
    projector.update()
    assert read_all(job) == before
    assert foreign.read_bytes().endswith(b"of somebody else")


@pytest.mark.parametrize("name", ["facts", "runtime"])
def test_files_behind_a_linked_directory_are_not_written(
    job: Path, tmp_path: Path, name: str
) -> None:
    (job / name).rename(tmp_path / "elsewhere")
    (job / name).symlink_to(tmp_path / "elsewhere")
    before = {path.name: path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()}
    with pytest.raises(StoreError, match=f"{name}' is a link"):
        rebuild(job)
    left = {path.name: path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()}
    assert left == {each: before[each] for each in left}
    assert set(before) - set(left) <= {"projection.json"}


@pytest.mark.parametrize(
    "wrong", [{"cursor": -3}, {"sizes": {}}, {"sizes": -1}, {"rewrites": "x"}, {"boot": 1}]
)
def test_a_damaged_progress_of_the_projection_is_ignored(
    job: Path, wrong: dict[str, object]
) -> None:
    before, path = read_all(job), job / "runtime/projection.json"
    progress = json.loads(path.read_text())
    if wrong == {"sizes": -1}:
        wrong = {"sizes": dict.fromkeys(progress["sizes"], -1)}
    path.write_text(json.dumps({**progress, **wrong}))
    assert Projector(job, job / "record.db").update() == 4
    assert read_all(job) == before


def test_the_facts_of_a_record_that_was_lost_are_replaced_by_those_of_its_successor(
    job: Path,
) -> None:
    for name in ("record.db", "record.db-wal", "record.db-shm"):
        (job / name).unlink(missing_ok=True)
    make_job(job, shift=7)
    assert Projector(job, job / "record.db").update() == 4
    assert verify(job).problems == ()


def test_a_stale_process_leaves_the_facts_to_the_later_one(job: Path) -> None:
    first = Projector(job, job / "record.db", epoch=1)
    assert first.update() == 4

    async def take_over() -> None:
        async with JobWriter(job / "record.db", "job") as writer:
            await writer.begin()
            await writer.commit(ended(4, rows=0, epoch=2))
            assert Projector(job, job / "record.db", epoch=writer.epoch).update() == 6

    asyncio.run(take_over())
    before = read_all(job)
    with pytest.raises(StaleWriterError, match="of epoch 2, writes the facts"):
        first.update()
    assert read_all(job) == before
    # The same without an epoch: what is written twice is there once.
    Projector(job, job / "record.db").update()
    assert read_all(job) == before


def test_readers_see_whole_facts_while_they_are_replaced(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, projector = read_all(job), Projector(job, job / "record.db")
    projector.update()

    async def end_late() -> None:
        async with JobWriter(job / "record.db", "job") as writer:
            await writer.begin()
            await writer.commit(ended(0, attempt=2))

    asyncio.run(end_late())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(DiskFullError):
            projector.update()
    assert read_all(job) == before
    projector.update()
    assert len(lines(job / "evidence/attempts.jsonl")) == 5
    assert [path.name for path in job.rglob("*.tmp")] == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records SET record = '{' WHERE idx = 0",
        "UPDATE records SET record = CAST(x'7b22f4' AS TEXT) WHERE idx = 0",
        "UPDATE jobs SET control = '{}}'",
        "UPDATE revisions SET plan = '{}'",
        "UPDATE metrics SET name = CAST(x'ff' AS TEXT) WHERE idx = 0 AND name = 'reward'",
    ],
)
def test_a_damaged_row_is_named_and_never_projected(job: Path, damage: str) -> None:
    before = read_all(job)
    with apsw.Connection(str(job / "record.db")) as connection:
        connection.execute(damage)
    for call in (verify, rebuild, lambda directory: project(directory, job / "record.db")):
        with pytest.raises(DamagedDatabaseError):
            call(job)
    assert read_all(job) == before


def test_the_totals_of_a_job_are_those_of_its_rows(job: Path) -> None:
    with JobReader(job / "record.db") as reader:
        totals, slots, attempts = reader.totals(), list(reader.slots()), reader.attempts()
    assert (totals.name, totals.cursor, totals.control.status) == ("job", 4, "paused")
    assert list(totals.variants) == ["a", "b"]
    for variant, found in totals.variants.items():
        mine = [slot for slot in slots if slot.variant == variant]
        assert found.slots == Counter(slot.status for slot in mine)
        mine_ended = [each for each in attempts if slots[each.index].variant == variant]
        assert found.attempts == Counter(each.status for each in mine_ended)
        total = 100.0 * len(mine_ended)
        assert found.metrics["tokens_in"] == MetricTotal(len(mine_ended), total, 100, 100)
    (error,) = totals.errors
    assert (error.type, error.fingerprint, error.attempts) == ("CapacityError", "f1", 1)
    assert (totals.first_started, totals.last_finished) == (10.0, 1_000.5)
