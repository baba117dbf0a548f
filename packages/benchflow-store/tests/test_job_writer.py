"""What a commit to the record database promises."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from benchflow_contracts import Dispatch, StoreError, UsageError
from benchflow_store.database import (
    EventRow,
    JobIsRunningError,
    JobReader,
    JobWriter,
    Metric,
    PlanRevision,
    RunControl,
    SchemaVersionError,
    StaleWriterError,
    is_locked,
    lock_job,
    migrate,
    read_job_state,
    schema,
)
from job_records import PLAN, ended, planned


def with_writer(
    database: Path, use: Callable[[JobWriter], Awaitable[None]], count: int = 4
) -> None:
    async def run() -> None:
        async with JobWriter(database, "job") as writer:
            await writer.begin(PLAN, planned(count), now=1.0)
            await use(writer)

    asyncio.run(run())


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "record.db"


def test_an_acknowledged_commit_is_in_the_database_with_all_its_rows(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        receipt = await writer.commit(ended(0))
        assert (receipt.counted, receipt.duplicate) == (True, False)
        assert (receipt.status, receipt.cursor) == ("completed", 1)
        with JobReader(database) as reader:  # while the writer lives
            (slot, *_), metrics = list(reader.slots()), reader.metrics()
            assert slot.attempt is not None and slot.attempt.rollout == "task-0__00000101"
            assert metrics == [(0, "reward", 1.0, 0), (0, "tokens_in", 100.0, 1)]
            assert len(reader.events()) == len(reader.refs()) == 2

    with_writer(database, use)


def test_a_slow_slot_holds_back_the_cursor_and_nothing_else(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        assert (await writer.commit(ended(1))).cursor == 0
        assert (await writer.commit(ended(2))).cursor == 0
        with JobReader(database) as reader:
            assert reader.counts() == {"completed": 2, "pending": 2}
        assert (await writer.commit(ended(0))).cursor == 3

    with_writer(database, use)


def test_the_first_score_counts_and_a_later_completion_is_a_duplicate(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        await writer.commit(ended(0))
        for later in (ended(0), ended(0, attempt=2, rollout="other"), ended(0, scored=False)):
            receipt = await writer.commit(later)
            assert (receipt.counted, receipt.duplicate) == (False, True)
        with JobReader(database) as reader:
            attempts = reader.attempts()
            assert [each.counted for each in attempts] == [True, False, False, False]
            assert [each.duplicate for each in attempts] == [False, True, True, True]
            assert len(reader.metrics()) == 2

    with_writer(database, use)


def test_which_attempt_counts_is_a_matter_of_score_then_attempt(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        assert (await writer.commit(ended(0, scored=False, attempt=2))).counted
        assert (await writer.commit(ended(0, scored=False, attempt=2))).duplicate
        assert (await writer.commit(ended(0, scored=False, attempt=1))).duplicate
        assert (await writer.commit(ended(0, scored=False, attempt=3, last=True))).counted
        assert (await writer.commit(ended(0, attempt=1))).status == "completed"
        with JobReader(database) as reader:
            counted = [each for each in reader.attempts() if each.counted]
            assert [(each.attempt, each.status) for each in counted] == [(1, "scored")]
            assert reader.contradictions() == []

    with_writer(database, use)


def test_an_unscored_slot_is_failed_after_its_last_attempt(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        assert (await writer.commit(ended(0, scored=False))).status == "pending"
        receipt = await writer.commit(ended(0, scored=False, attempt=2, last=True))
        assert (receipt.status, receipt.cursor) == ("failed", 1)
        assert await writer.resolve([1, 2], "skipped_pruned") == 3
        assert await writer.requeue([0, 2]) == 0
        with JobReader(database) as reader:
            (first, *_) = reader.slots()
            assert first.attempt is not None and first.attempt.error is not None
            assert first.attempt.error.message == "no room: ünï\\0code"

    with_writer(database, use)


def test_a_scored_slot_is_not_requeued(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        await writer.commit(ended(1))
        await writer.commit(ended(0, scored=False, last=True))
        with pytest.raises(UsageError, match="has a score"):
            await writer.requeue([0, 1])
        assert (await writer.commit(ended(2))).cursor == 3

    with_writer(database, use)


def test_attempts_that_wait_together_share_a_transaction_and_fail_alone(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        twice = [Metric("m", 1.0), Metric("m", 2.0)]
        wrong = ended(2)
        object.__setattr__(wrong, "metrics", twice)
        futures = [writer.commit(each) for each in (ended(0), ended(1), wrong, ended(3))]
        results: list[object] = []
        async with asyncio.TaskGroup() as group:
            for each in futures:
                group.create_task(_outcome(each, results))
        assert [isinstance(each, StoreError) for each in results].count(True) == 1
        with JobReader(database) as reader:
            assert reader.counts() == {"completed": 3, "pending": 1}

    with_writer(database, use)


async def _outcome(call: Awaitable[object], results: list[object]) -> None:
    try:
        results.append(await call)
    except StoreError as error:
        results.append(error)


@pytest.mark.parametrize(
    ("commit", "why"),
    [
        (ended(9), "no slot 9"),
        (ended(0, epoch=2), "epoch 2"),
        (ended(0, reward=float("nan")), "not a finite number"),
    ],
)
def test_a_commit_that_contradicts_the_job_is_refused(
    database: Path, commit: object, why: str
) -> None:
    async def use(writer: JobWriter) -> None:
        with pytest.raises(StoreError, match=why):
            await writer.commit(commit)  # type: ignore[arg-type]
        assert (await writer.commit(ended(0))).counted

    with_writer(database, use)


def test_agent_text_of_any_kind_can_be_stored(database: Path) -> None:
    events = (EventRow("step", {"text": "\0 \ud800 \u202e", "number": float("inf")}),)

    async def use(writer: JobWriter) -> None:
        assert (await writer.commit(ended(0, events=events))).counted
        with JobReader(database) as reader:
            assert reader.events()[0][4] == '{"text":"\\u0000 ? \u202e","number":null}'

    with_writer(database, use)


def test_a_running_attempt_of_a_dead_writer_becomes_interrupted(database: Path) -> None:
    async def run() -> None:
        async with JobWriter(database, "job") as writer:
            await writer.begin(PLAN, planned(2), now=1.0)
            slot = planned(1)[0].name
            dispatch = Dispatch(job="job", index=0, slot=slot, attempt=1, epoch=1, rollout="r")
            await writer.start(dispatch, worker="w", started=5.0)
        async with JobWriter(database, "job") as later:
            state = await later.begin()
            assert (state.epoch, state.slots[0].attempts) == (2, 1)
            with JobReader(database) as reader:
                assert [each.status for each in reader.attempts()] == ["interrupted"]
            await later.commit(ended(0, attempt=2, epoch=2))
            # The old attempt ended after all: its row gets its end, and counts no more.
            receipt = await later.commit(ended(0, rollout="r"))
            assert receipt.duplicate
            with JobReader(database) as reader:
                rows = [(each.attempt, each.worker, each.status) for each in reader.attempts()]
                assert rows == [(1, "w", "scored"), (2, "", "scored")]

    asyncio.run(run())


def test_a_job_is_extended_by_a_plan_revision(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        plan = PlanRevision(config_digest="sha256:2", variants={"c": {"k": 1}})
        assert await writer.extend(plan, planned(2, 4), now=2.0) == 2
        with pytest.raises(UsageError, match="already has a slot"):
            await writer.extend(plan, planned(1, 5))
        assert (await writer.commit(ended(5))).counted
        state = read_job_state(database)
        assert (state.revision, len(state.slots)) == (2, 6)
        assert state.plan.config_digest == "sha256:2"

    with_writer(database, use)


def test_control_is_stored(database: Path) -> None:
    async def use(writer: JobWriter) -> None:
        control = RunControl(status="paused", pause={"label": "lunch"}, updated=3.0)
        await writer.set_control(control)
        assert read_job_state(database).control == control

    with_writer(database, use)


def test_a_later_writer_fences_the_earlier_one(database: Path) -> None:
    async def run() -> None:
        async with JobWriter(database, "job") as first, JobWriter(database, "job") as second:
            assert (await first.begin(PLAN, planned(4))).epoch == 1
            await first.commit(ended(0))
            assert (await second.begin()).epoch == 2
            for _ in range(2):
                with pytest.raises(StaleWriterError):
                    await first.commit(ended(1))
            assert (await second.commit(ended(1, epoch=2))).cursor == 2
        with JobReader(database) as reader:
            assert [each.epoch for each in reader.attempts()] == [1, 2]

    asyncio.run(run())


@pytest.mark.parametrize("change", ["removed", "replaced by its copy"])
def test_a_writer_whose_file_is_gone_acknowledges_nothing(database: Path, change: str) -> None:
    def lose() -> None:
        if change == "removed":
            database.unlink()
        else:
            shutil.copy(database, database.with_name("copy")).replace(database)

    async def use(writer: JobWriter) -> None:
        await writer.commit(ended(0))
        lose()
        with pytest.raises(StaleWriterError, match="deleted, or replaced"):
            await writer.commit(ended(1))

    with_writer(database, use)


def test_a_copy_does_not_begin_while_the_original_runs(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()

    async def run() -> None:
        async with JobWriter(original / "record.db", "job") as writer:
            await writer.begin(PLAN, planned(2))
            await writer.commit(ended(0))
            shutil.copytree(original, copy)
            with lock_job(copy):
                async with JobWriter(copy / "record.db", "job") as second:
                    with pytest.raises(JobIsRunningError, match="copy of the job"):
                        await second.begin()
            await writer.commit(ended(1))

    with lock_job(original):
        asyncio.run(run())

    async def resume() -> None:
        async with JobWriter(copy / "record.db", "job") as writer:
            assert (await writer.begin()).epoch == 2

    asyncio.run(resume())


def test_a_job_is_locked_once(tmp_path: Path) -> None:
    with lock_job(tmp_path), pytest.raises(JobIsRunningError), lock_job(tmp_path):
        pass


def test_a_lock_that_is_a_link_leaves_the_target_alone(tmp_path: Path) -> None:
    precious, job = tmp_path / "precious", tmp_path / "job"
    precious.write_text("precious")
    job.mkdir()
    (job / ".lock").symlink_to(precious)
    with pytest.raises(StoreError, match="cannot lock"), lock_job(job):
        pass
    assert precious.read_text() == "precious"
    assert not is_locked(job)


def test_a_database_with_two_names_has_no_writer(tmp_path: Path) -> None:
    database, other = tmp_path / "record.db", tmp_path / "copy" / "record.db"
    with_writer(database, lambda writer: writer.set_control(RunControl()))
    other.parent.mkdir()
    other.hardlink_to(database)
    for path in (database, other):
        with pytest.raises(StoreError, match="has another name"):
            with_writer(path, lambda writer: writer.set_control(RunControl()))
    other.unlink()
    with_writer(database, lambda writer: writer.set_control(RunControl()))


def test_another_plan_is_refused(database: Path) -> None:
    async def run() -> None:
        async with JobWriter(database, "job") as writer:
            with pytest.raises(UsageError, match="planned differently"):
                await writer.begin(PlanRevision(config_digest="sha256:9"), planned(4))

    with_writer(database, lambda writer: writer.set_control(RunControl()))
    asyncio.run(run())
    assert read_job_state(database).epoch == 1


def test_a_missing_database_is_named(database: Path) -> None:
    async def run() -> None:
        async with JobWriter(database, "job") as writer:
            with pytest.raises(StoreError, match=r"no record database .*record.db"):
                await writer.begin()

    asyncio.run(run())
    assert not database.exists()


def test_a_newer_schema_is_refused_and_stays_as_it_is(database: Path) -> None:
    with_writer(database, lambda writer: writer.set_control(RunControl()))
    with apsw.Connection(str(database)) as connection:
        connection.execute("UPDATE schema_version SET version = 99")

    async def run() -> None:
        async with JobWriter(database, "job") as writer:
            await writer.begin(PLAN, planned(4))

    with pytest.raises(SchemaVersionError, match="version 99") as found:
        asyncio.run(run())
    assert found.value.hint == "use a newer BenchFlow"
    with pytest.raises(SchemaVersionError):
        read_job_state(database)
    with pytest.raises(SchemaVersionError):
        migrate(database.parent)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_migrations_run_together_or_not_at_all(
    database: Path, monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    with_writer(database, lambda writer: writer.set_control(RunControl()))
    added = ("CREATE TABLE notes (text TEXT)", "DROP TABLE missing" if is_wrong else "SELECT 1")
    later = (*schema.migrations(), *added)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: later)
        with pytest.raises(SchemaVersionError, match="version 1") as found:
            read_job_state(database)
        assert "bench store migrate" in found.value.hint
        if is_wrong:
            with pytest.raises(StoreError, match="missing"):
                migrate(database.parent)
        else:
            report = migrate(database.parent)
            assert (report.before, report.after) == (1, 3)
            assert read_job_state(database).name == "job"
    if is_wrong:
        assert read_job_state(database).name == "job"
    else:
        with pytest.raises(SchemaVersionError, match="version 3"):
            read_job_state(database)


def test_a_file_that_is_not_a_database_is_named(database: Path) -> None:
    database.write_bytes(b"x" * 5_000)
    with pytest.raises(StoreError, match=r"record.db.*not a database"):
        read_job_state(database)


def test_a_reader_keeps_its_state_while_the_database_is_migrated(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_writer(database, lambda writer: writer.commit(ended(0)))
    later = (*schema.migrations(), "ALTER TABLE slots ADD COLUMN note TEXT")
    with JobReader(database) as reader:
        before = list(reader.slots())
        monkeypatch.setattr(schema, "migrations", lambda: later)
        assert migrate(database.parent).after == 2
        assert list(reader.slots()) == before
        assert reader.counts() == {"completed": 1, "pending": 3}
    assert read_job_state(database).slots[0].status == "completed"


def test_writers_that_begin_at_the_same_time_get_different_epochs(database: Path) -> None:
    async def run() -> None:
        writers = [JobWriter(database, "job") for _ in range(8)]
        async with asyncio.TaskGroup() as group:
            begun = [group.create_task(each.begin(PLAN, planned(4))) for each in writers]
        states = [task.result() for task in begun]
        assert sorted(state.epoch for state in states) == list(range(1, 9))
        refused: list[object] = []
        for writer, state in zip(writers, states, strict=True):
            await _outcome(writer.commit(ended(0, epoch=state.epoch)), refused)
        kinds = [type(each) for each in refused]
        assert kinds.count(StaleWriterError) == 7
        for writer in writers:
            await writer.close()

    asyncio.run(run())
    with JobReader(database) as reader:
        assert [each.epoch for each in reader.attempts()] == [8]


def test_the_rewards_are_those_of_completed_slots_and_of_the_attempt_that_counts(
    database: Path,
) -> None:
    async def commit(writer: JobWriter) -> None:
        tampered = replace(ended(2), metrics=[])
        for each in (ended(0, scored=False, reward=0.0), ended(1, reward=0.25), tampered):
            await writer.commit(each)
        await writer.commit(ended(0, attempt=2, reward=0.75))
        await writer.commit(ended(3, scored=False))

    with_writer(database, commit)
    with JobReader(database) as reader:
        assert reader.rewards() == {0: 0.75, 1: 0.25, 2: 0.0}
