"""The same record on a Postgres server: the same answers, and the same bytes of facts."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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
    UnknownOutcomeError,
    postgres,
    project,
    read_job_state,
)
from job_records import PLAN, ended, planned
from postgres_server import running_postgres


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[str]:
    with running_postgres(postgres_programs) as url:
        yield url


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


class Proxy:
    """A socket before the server. It cuts the connection once, before or after a COMMIT."""

    def __init__(self, server: str, directory: Path) -> None:
        self._target = f"{parse_qs(urlsplit(server).query)['host'][0]}/.s.PGSQL.5999"
        self.url = f"postgresql://bench@/postgres?host={directory}&port=5998"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5998"))
        self._listener.listen()
        self.cut = ""
        self.refuse = False
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._sockets.append(client)
                if self.refuse:
                    client.shutdown(socket.SHUT_RDWR)
                    continue
                upstream = socket.socket(socket.AF_UNIX)
                self._sockets.append(upstream)
                upstream.connect(self._target)
                self._start(self._copy, client, upstream, "before")
                self._start(self._copy, upstream, client, "after")

    def _copy(self, source: socket.socket, sink: socket.socket, side: str) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if self.cut.startswith(side) and b"COMMIT" in data:
                    self.refuse, self.cut = self.cut.endswith("for ever"), ""
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pg-") as name:
        proxy = Proxy(server, Path(name))
        yield proxy
        proxy.close()


def attempts(server: str, job: str) -> list[tuple[int, bool, bool]]:
    with JobReader(server, job) as reader:
        assert reader.contradictions() == []
        return [(each.index, each.counted, each.duplicate) for each in reader.attempts()]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_connection_lost_in_a_commit_loses_and_doubles_nothing(
    server: str, proxy: Proxy, cut: str
) -> None:
    async def run() -> None:
        async with JobWriter(proxy.url, f"cut-{cut}") as writer:
            await writer.begin(PLAN, planned(3))
            await writer.commit(ended(0))
            proxy.cut = cut
            if cut == "before":
                with pytest.raises(DatabaseBusyError):
                    await writer.commit(ended(1))
            receipt = await writer.commit(ended(1))
            assert (receipt.counted, receipt.cursor) == (True, 2)
            assert (await writer.commit(ended(2))).cursor == 3

    asyncio.run(run())
    assert proxy.cut == ""
    assert attempts(server, f"cut-{cut}") == [(index, True, False) for index in range(3)]


def test_a_server_that_vanishes_in_a_commit_ends_the_writer(
    server: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_OUTCOME_SEC", 0.5)

    async def run() -> None:
        async with JobWriter(proxy.url, "vanished") as writer:
            await writer.begin(PLAN, planned(2))
            proxy.cut = "after, for ever"
            for _ in range(2):
                with pytest.raises(UnknownOutcomeError, match="during a commit"):
                    await writer.commit(ended(0))
        proxy.refuse = False
        async with JobWriter(proxy.url, "vanished") as writer:
            state = await writer.begin()
            assert [each.status for each in state.slots] == ["completed", "pending"]

    asyncio.run(run())
    assert attempts(server, "vanished") == [(0, True, False)]


def test_a_server_that_restarts_between_commits_is_found_again(server: str, proxy: Proxy) -> None:
    async def run() -> None:
        async with JobWriter(proxy.url, "restart") as writer:
            await writer.begin(PLAN, planned(2))
            await writer.commit(ended(0))
            with psycopg.connect(server, autocommit=True) as connection:
                sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
                connection.execute(f"{sql} pg_backend_pid() AND backend_type = 'client backend'")
            with pytest.raises(DatabaseBusyError):
                await writer.commit(ended(1))
            assert (await writer.commit(ended(1))).cursor == 2

    asyncio.run(run())
    assert attempts(server, "restart") == [(0, True, False), (1, True, False)]
