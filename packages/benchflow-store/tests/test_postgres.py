"""The same record on a Postgres server: the same answers, and the same bytes of facts."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from benchflow_contracts import UsageError
from benchflow_store.database import (
    PROJECTED_FILES,
    DatabaseBusyError,
    JobReader,
    JobWriter,
    Location,
    Receipt,
    SchemaVersionError,
    StaleWriterError,
    project,
    read_job_state,
)
from job_records import PLAN, ended, planned


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[str]:
    """Start a server that only this machine reaches, by a socket. Yield the URL of a database."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pg-") as name:
        data, user = Path(name, "data"), None
        if os.geteuid() == 0:
            user = "nobody"
            shutil.chown(name, user)

        def run(program: str, *words: str) -> None:
            command = [str(postgres_programs / program), "-D", str(data), *words]
            subprocess.run(command, check=True, user=user, cwd=name, stdout=subprocess.DEVNULL)

        run("initdb", "-U", "bench", "-A", "trust", "--no-sync")
        options = f"-k {name} -c listen_addresses='' -c port=5999"
        run("pg_ctl", "-o", options, "-l", str(Path(name, "log")), "-w", "start")
        try:
            yield f"postgresql://bench@/postgres?host={name}&port=5999"
        finally:
            run("pg_ctl", "-m", "immediate", "-w", "stop")


async def run_job(location: Location, home: Path) -> list[Receipt]:
    """Do the same to any database: attempts in any order, late ones, a second writer."""
    async with JobWriter(location, "job", home=home) as first:
        await first.begin(PLAN, planned(6), now=1.0)
        ends = [
            ended(1),
            ended(0, scored=False),
            ended(0, scored=False, attempt=2, last=True),
            ended(2, scored=False, last=True),
            ended(1, attempt=2),
        ]
        receipts = [await first.commit(each) for each in ends]
        await first.requeue([2])
        async with JobWriter(location, "job", home=home) as second:
            await second.begin()
            with pytest.raises(StaleWriterError):
                await first.commit(ended(3))
            await second.resolve([3], "skipped_pruned")
            await second.extend(PLAN, planned(1, 6), now=2.0)
            calls = [second.commit(ended(index, epoch=2)) for index in (4, 2, 5)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call) for call in calls]
            return receipts + [task.result() for task in tasks]


def test_a_server_gives_the_answers_and_the_bytes_of_a_file(server: str, tmp_path: Path) -> None:
    homes = {"file": tmp_path / "file", "server": tmp_path / "server"}
    found: list[object] = []
    for name, home in homes.items():
        home.mkdir()
        location: Location = server if name == "server" else home / "record.db"
        receipts = asyncio.run(run_job(location, home))
        assert project(home, location, "job") == 6
        with JobReader(location, "job") as reader:
            assert reader.contradictions() == []
        found.append((receipts, {path: (home / path).read_bytes() for path in PROJECTED_FILES}))
    assert found[0] == found[1]


def test_a_server_holds_several_jobs(server: str) -> None:
    async def run() -> None:
        async with JobWriter(server, "one") as one, JobWriter(server, "two") as two:
            await one.begin(PLAN, planned(1))
            await two.begin(PLAN, planned(2))
            assert (await one.commit(ended(0))).cursor == 1
            assert (await two.commit(ended(1))).cursor == 0

    asyncio.run(run())
    assert read_job_state(server, "one").cursor == 1
    with pytest.raises(UsageError, match="jobs of that name"):
        read_job_state(server)


def test_a_server_with_a_newer_schema_is_refused(server: str) -> None:
    async def run() -> None:
        async with JobWriter(server, "late") as writer:
            await writer.begin(PLAN, planned(1))

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("UPDATE schema_version SET version = 99")
        try:
            with pytest.raises(SchemaVersionError, match="version 99"):
                asyncio.run(run())
        finally:
            connection.execute("UPDATE schema_version SET version = 1")


def test_a_missing_server_is_named_without_the_password() -> None:
    url = "postgresql://bench:secret@localhost:1/x"
    with pytest.raises(DatabaseBusyError) as found:
        read_job_state(url)
    assert "postgresql://bench@localhost:1/x" in str(found.value)
    assert "secret" not in str(found.value)
