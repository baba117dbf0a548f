"""After kills and faults of the disk, no acknowledged attempt is lost, and none is doubled."""

import asyncio
import contextlib
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NoReturn

import job_records
import pytest
from benchflow_contracts import BenchFlowError
from benchflow_store.database import (
    PROJECTED_FILES,
    DiskFullError,
    EventRow,
    JobReader,
    JobWriter,
    LocalEvidenceStore,
    Projector,
    verify,
)
from job_records import (
    PLAN,
    check_whole,
    comparable_facts,
    ended,
    planned,
    unfinished_files,
    write_pending,
)
from watching import until

needs_strace = pytest.mark.usefixtures("strace")
SLOTS = 6
MANY = 40
"""The slots of a job whose writers are killed at random."""


def write(database: Path, commits: int = SLOTS, *, inject: str = "") -> tuple[int, str]:
    """Run a writer to its end or its death. Return the exit status and its output.

    The writer is a fork, because a new interpreter takes longer than the writer.
    """
    wait, to_child = os.pipe()
    read, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        _run_writer(wait, to_child, to_parent, database, commits)
    os.close(wait)
    os.close(to_parent)
    with contextlib.ExitStack() as tracing:
        if inject:
            trace = f"trace={inject.partition(':')[0]}"
            command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e"]
            command += [f"inject={inject}", "-p", str(child)]
            tracing.enter_context(subprocess.Popen(command))
            status = Path(f"/proc/{child}/status")
            until("a tracer", lambda: "TracerPid:\t0\n" not in status.read_text())
        os.close(to_child)
        with os.fdopen(read) as pipe:
            output = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


def _run_writer(wait: int, to_child: int, output: int, database: Path, commits: int) -> NoReturn:
    status = 1
    try:
        os.dup2(output, 1)
        sys.stdout = os.fdopen(1, "w")
        os.close(to_child)
        os.read(wait, 1)
        asyncio.run(write_pending(database, SLOTS, 1, commits))
        status = 0
    except BaseException:  # a fork of pytest must not return
        traceback.print_exc()
    os._exit(status)


def committed(output: str) -> set[int]:
    return {int(index) for index in re.findall(r"^committed (\d+)\n", output, re.MULTILINE)}


def failures(output: str) -> list[str]:
    return [line.split()[2] for line in output.splitlines() if line.startswith("failed")]


def finish(database: Path, acknowledged: set[int]) -> None:
    """Check a database after a fault, and resume its job to the end."""
    if acknowledged:  # else the job may not exist yet
        check_whole(database, acknowledged)
    resume(database, SLOTS)


def resume(database: Path, slots: int) -> None:
    """Run the rest of a job. Require the facts of a run without faults, and nothing beside."""
    asyncio.run(write_pending(database, slots, 1, slots))
    check_whole(database, set(range(slots)))
    assert verify(database.parent).problems == ()
    assert comparable_facts(database.parent) == facts_without_faults(slots)
    assert unfinished_files(database.parent) == []


@cache
def facts_without_faults(slots: int) -> dict[str, list[dict[str, object]]]:
    with tempfile.TemporaryDirectory() as job, contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(write_pending(Path(job, "record.db"), slots, 1, slots))
        return comparable_facts(Path(job))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return a directory with a job of which two slots are committed."""
    directory = tmp_path / "begun"
    directory.mkdir()
    asyncio.run(write_pending(directory / "record.db", SLOTS, 1, 2))
    return directory


def kill_at(begun: Path, call: str, when: int) -> bool:
    """Kill a resumed writer at a system call, and resume. Return whether the call happened."""
    directory = begun.with_name(f"{call}-{when}")
    shutil.copytree(begun, directory)
    database = directory / "record.db"
    status, output = write(database, 2, inject=f"{call}:signal=SIGKILL:when={when}")
    finish(database, {0, 1} | committed(output))
    return status != 0


@needs_strace
@pytest.mark.parametrize(("call", "when"), [("pwrite64", 24), ("fdatasync", 4)])
def test_a_kill_inside_a_commit_loses_nothing(begun: Path, call: str, when: int) -> None:
    assert kill_at(begun, call, when)


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize(
    ("call", "instants"),
    [("pwrite64", (1, 2, 3, 5, 12, 13, 30, 50)), ("fdatasync", (1, 2, 3, 4, 5)), ("unlink", (1,))],
)
def test_a_kill_while_the_database_is_created_needs_no_repair(
    tmp_path: Path, call: str, instants: tuple[int, ...]
) -> None:
    for when in instants:
        database = tmp_path / str(when) / "record.db"
        database.parent.mkdir()
        status, output = write(database, 2, inject=f"{call}:signal=SIGKILL:when={when}")
        assert status != 0
        finish(database, committed(output))


@pytest.mark.slow
@pytest.mark.timeout(580)
@needs_strace
@pytest.mark.parametrize(
    "call",
    ["write", "pwrite64", "fdatasync", "fsync", "ftruncate", "rename", "renameat", "unlink"],
)
def test_a_kill_at_each_write_and_flush_loses_nothing(begun: Path, call: str) -> None:
    when = 1
    while kill_at(begun, call, when):
        when += 1
    assert when > 1


@needs_strace
def test_a_failed_flush_ends_the_writer_and_is_no_success(begun: Path) -> None:
    database = begun / "record.db"
    status, output = write(database, inject="fdatasync:error=EIO:when=5")
    assert status == 0
    assert committed(output) == {2}
    # Each slot is tried twice, and the writer refuses all that follows the fault.
    assert failures(output) == ["DiskFaultError"] * (2 * (SLOTS - 3))
    finish(database, {0, 1, 2})


@needs_strace
def test_a_full_disk_refuses_a_commit_that_succeeds_when_there_is_room(begun: Path) -> None:
    database = begun / "record.db"
    status, output = write(database, inject="pwrite64:error=ENOSPC:when=30")
    assert status == 0
    assert failures(output) == ["DiskFullError"]
    assert committed(output) == set(range(2, SLOTS))
    finish(database, committed(output))


@pytest.fixture
def small_disk(root: None, tmp_path: Path) -> Iterator[Path]:
    """Mount a memory file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_file_system_is_named_and_the_job_resumes_with_room(small_disk: Path) -> None:
    database, ballast = small_disk / "record.db", small_disk / "ballast"
    asyncio.run(write_pending(database, SLOTS, 1, 2))
    used = sum(path.stat().st_size for path in small_disk.rglob("*") if path.is_file())
    ballast.write_bytes(b"x" * (1_000_000 - used))
    status, output = write(database)
    assert status != 0 or set(failures(output)) == {"DiskFullError"}
    assert committed(output) != set(range(2, SLOTS))
    check_whole(database, {0, 1} | committed(output))
    ballast.unlink()
    finish(database, {0, 1} | committed(output))


def test_a_full_file_system_says_how_many_bytes_the_commit_needs(small_disk: Path) -> None:
    large = ended(0, events=(EventRow("step", {"text": "x" * 3_000_000}),))

    async def run() -> None:
        async with JobWriter(small_disk / "record.db", "job") as writer:
            await writer.begin(PLAN, planned(2))
            with pytest.raises(DiskFullError) as found:
                await writer.commit(large)
            assert 3_000_000 < found.value.needed_bytes < 9_000_000
            assert (await writer.commit(ended(1))).counted

    asyncio.run(run())


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def test_facts_and_evidence_on_a_full_file_system_stay_whole(small_disk: Path) -> None:
    job, database, ballast = small_disk / "job", small_disk / "record.db", small_disk / "ballast"
    asyncio.run(write_pending(database, SLOTS, 1, SLOTS))
    projector, store = Projector(job, database), LocalEvidenceStore(job / "artifacts")
    projector.update()
    before = {name: (job / name).read_bytes() for name in PROJECTED_FILES}
    (job / "facts/trials.jsonl").unlink()
    asyncio.run(store.put(b"a"))
    ballast.write_bytes(b"x" * (free_bytes(small_disk) - 4_096))
    with pytest.raises(DiskFullError, match=str(job)):
        projector.update()
    with pytest.raises(DiskFullError, match=str(job)):
        asyncio.run(store.put(b"x" * 8_192))
    left = {path for path in job.rglob("*") if path.name.startswith(".")}
    assert left == set()
    ballast.unlink()
    assert projector.update() == SLOTS
    assert {name: (job / name).read_bytes() for name in PROJECTED_FILES} == before


@pytest.mark.parametrize("log", [False, True])
def test_an_archived_job_is_read_from_a_read_only_file_system(small_disk: Path, log: bool) -> None:
    asyncio.run(write_pending(small_disk / "record.db", SLOTS, 1, SLOTS))
    if log:  # a reader of the closed database leaves an empty log
        (small_disk / "record.db-wal").touch()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    check_whole(small_disk / "record.db", set(range(SLOTS)))


def test_a_stopped_writer_that_continues_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "record.db"
    command = [sys.executable, job_records.__file__, str(database), str(SLOTS), "1", "3", "step"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as first:
        assert first.stdin is not None and first.stdout is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "committed 0\n"
        first.send_signal(signal.SIGSTOP)
        asyncio.run(write_pending(database, SLOTS, 1, 2))
        first.send_signal(signal.SIGCONT)
        rest, _ = first.communicate("\n\n")
    assert failures(rest) == ["StaleWriterError"] * 4
    with JobReader(database) as reader:
        assert [each.epoch for each in reader.attempts()] == [1, 2, 2]
    check_whole(database, {0, 1, 2})


def kill_at_random(database: Path, rng: random.Random) -> set[int]:
    """Kill a writer in a child process after a random commit. Return the acknowledged slots."""
    after, delay_sec = rng.randrange(12), rng.uniform(0, 0.006)
    read, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(to_parent, 1)
        sys.stdout = os.fdopen(1, "w")
        asyncio.run(write_pending(database, MANY, 8, MANY))
        os._exit(0)
    os.close(to_parent)
    with os.fdopen(read) as pipe:
        output = "".join(islice(pipe, after))
        time.sleep(delay_sec)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return committed(output + pipe.read())


def kill_writers(directory: Path, kills: int, seed: int) -> None:
    """Kill the writers of a job until it has ended, then of the next one."""
    print("seed", seed)
    rng = random.Random(seed)
    job, acknowledged = 0, set[int]()
    for _ in range(kills):
        database = directory / str(job) / "record.db"
        database.parent.mkdir(exist_ok=True)
        acknowledged |= kill_at_random(database, rng)
        try:
            check_whole(database, acknowledged)
        except BenchFlowError:  # the job did not exist yet
            assert not acknowledged
            continue
        with JobReader(database) as reader:
            is_over = reader.counts() == {"completed": MANY}
        if is_over:
            resume(database, MANY)
            job, acknowledged = job + 1, set()
    if acknowledged:
        resume(directory / str(job) / "record.db", MANY)


def test_writers_killed_at_random_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    kill_writers(tmp_path, 60, seed=random.SystemRandom().randrange(1 << 32))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_thousand_killed_writers_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    kill_writers(tmp_path, 1_000, seed=random.SystemRandom().randrange(1 << 32))
