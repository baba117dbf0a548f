"""Sessions and limits that several processes share, in a file and on a Postgres server."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_dashboard import DashboardSettings, create_app, read_settings
from benchflow_dashboard.monitor.keys import add_key
from benchflow_dashboard.security.access import AccessControl
from benchflow_dashboard.security.access_database import AccessDatabase
from benchflow_dashboard.security.limits import MemoryBuckets, RateLimit, SharedBuckets
from benchflow_dashboard.security.remote import limit_key, read_networks, remote_address
from benchflow_dashboard.security.sessions import ABSOLUTE_SEC, IDLE_SEC, SessionStore
from benchflow_dashboard.security.users import User, add_user
from dashboard_forms import csrf_of
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import RequestFactory, TestClient
from postgres_server import new_database

if TYPE_CHECKING:
    from litestar import Litestar

ADDRESS = "http://127.0.0.1:8642"
COOKIE = "benchflow_session"


class Fleet:
    """Several dashboards with the same users and the same database of sessions."""

    def __init__(self, home: Path, location: Path | str, **settings: Any) -> None:
        self._home = home
        self._users = home / "users.toml"
        self.token = add_user(self._users, "ana", "operator")
        self.key = add_key(home / "keys.toml", "agent", spans_per_sec=0.5)
        (home / "jobs").mkdir()
        where = {"database_url": location} if isinstance(location, str) else {"sessions": location}
        self._settings = {**where, **settings}
        self._count = 0

    def start(self) -> TestClient[Litestar]:
        """Return a dashboard with an index of its own."""
        self._count += 1
        settings = DashboardSettings(
            jobs_dir=self._home / "jobs",
            index=self._home / f"index-{self._count}.db",
            monitor=self._home / f"monitor-{self._count}.db",
            users=self._users,
            ingest_keys=self._home / "keys.toml",
            **self._settings,
        )
        return TestClient(create_app(settings), base_url=ADDRESS)

    def log_in(self, client: TestClient[Litestar]) -> str:
        """Log a browser in, and return the id of its session."""
        form = {"token": self.token}
        assert client.post("/login", data=form, follow_redirects=False).status_code == 303
        return str(client.cookies[COOKIE])


def test_a_session_survives_a_restart_and_is_known_to_each_process(
    tmp_path: Path, location: Path | str
) -> None:
    fleet = Fleet(tmp_path, location)
    with fleet.start() as first:
        session = fleet.log_in(first)
        csrf = csrf_of(first)
    with fleet.start() as second, fleet.start() as third:
        second.cookies.set(COOKIE, session)
        third.cookies.set(COOKIE, session)
        assert second.get("/runs", follow_redirects=False).status_code == 200
        assert csrf_of(third) == csrf
        assert second.post("/logout", data={"csrf": csrf}).status_code == 200
        assert third.get("/runs", follow_redirects=False).status_code == 302


def test_the_database_holds_nothing_that_a_browser_sends(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tmp_path / "own" / "sessions.db")
    with fleet.start() as client:
        secrets = [fleet.log_in(client), csrf_of(client), fleet.token]
        files = list((tmp_path / "own").iterdir())
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert all(secret.encode() not in file.read_bytes() for secret in secrets)
    assert files


def test_attempts_to_log_in_are_counted_for_all_processes(
    tmp_path: Path, location: Path | str
) -> None:
    fleet = Fleet(tmp_path, location)
    with fleet.start() as first, fleet.start() as second:
        for client in (first, second) * 4:
            client.post("/login", data={"token": "wrong"})
        statuses = [first.post("/login", data={"token": "wrong"}).status_code for _ in range(30)]
        answer = second.post("/login", data={"token": fleet.token}, follow_redirects=False)
        while answer.status_code != 429:
            answer = second.post("/login", data={"token": fleet.token}, follow_redirects=False)
    assert statuses[:2] == [401, 401]
    assert 429 in statuses
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_user_sends_a_limited_number_of_requests_to_the_api(
    tmp_path: Path, location: Path | str
) -> None:
    fleet = Fleet(tmp_path, location, api_per_minute=3)
    token = {"authorization": f"Bearer {fleet.token}"}
    with fleet.start() as first, fleet.start() as second:
        answers = [c.get("/api/v1/jobs", headers=token) for c in (first, second) * 3]
        pages = [first.get("/jobs", headers=token).status_code for _ in range(8)]
    assert [answer.status_code for answer in answers[:4]] == [200, 200, 200, 429]
    assert int(answers[3].headers["retry-after"]) <= 20
    assert pages == [200] * 8


def test_an_address_has_the_requests_of_four_users(tmp_path: Path, location: Path | str) -> None:
    fleet = Fleet(tmp_path, location, api_per_minute=2)
    tokens = [add_user(tmp_path / "users.toml", f"user-{n}", "viewer") for n in range(5)]
    with fleet.start() as first, fleet.start() as second:
        statuses = [
            client.get("/api/v1/jobs", headers={"authorization": f"Bearer {token}"}).status_code
            for token in tokens
            for client in (first, second)
        ]
    assert statuses[:7] == [200] * 7
    assert statuses[-1] == 429


@pytest.mark.parametrize(("path", "count"), [("/export/rows", 10), ("/jobs/none/act/none", 20)])
def test_exports_and_actions_of_a_user_are_limited_for_all_processes(
    tmp_path: Path, location: Path | str, path: str, count: int
) -> None:
    fleet = Fleet(tmp_path, location)
    token = {"authorization": f"Bearer {fleet.token}"}
    method = "GET" if path.startswith("/export") else "POST"
    with fleet.start() as first, fleet.start() as second:
        answers = [c.request(method, path, headers=token) for c in (first, second) * count]
    statuses = [answer.status_code for answer in answers]
    assert 429 not in statuses[:count]
    assert 429 in statuses[count:]
    refused = answers[statuses.index(429)]
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_the_quota_of_an_ingest_key_is_of_all_processes(
    tmp_path: Path, location: Path | str
) -> None:
    fleet = Fleet(tmp_path, location)
    headers = {"x-benchflow-key": fleet.key}
    trace = b'{"resourceSpans": [{"scopeSpans": [{"spans": [%s]}]}]}'
    span = b'{"traceId": "%032x", "spanId": "%016x", "name": "a", "startTimeUnixNano": "1",'
    span += b' "endTimeUnixNano": "2"}'
    with fleet.start() as first, fleet.start() as second:
        statuses: list[int] = []
        for number, client in enumerate((first, second) * 20, 1):
            answer = client.post(
                "/v1/traces",
                content=trace % (span % (number, number)),
                headers={**headers, "content-type": "application/json"},
            )
            statuses.append(answer.status_code)
    assert statuses[:5] == [200] * 5
    assert 429 in statuses


def test_a_session_ends_when_it_is_idle_and_after_half_a_day(location: Path | str) -> None:
    now = [1_000_000.0]
    database = AccessDatabase(location)
    store = SessionStore(database, lambda: now[0])
    idle, _ = store.create(User("ana", "viewer"))
    busy, _ = store.create(User("ana", "viewer"))
    while now[0] < 1_000_000 + ABSOLUTE_SEC:
        assert store.get(busy) is not None
        now[0] += IDLE_SEC - 1

    assert store.get(idle) is None
    assert store.get(busy) is None
    store.create(User("ben", "viewer"))
    assert database.query("SELECT COUNT(*) FROM dashboard_sessions") == [(1,)]
    database.close()


def test_a_look_does_not_keep_a_session_alive(location: Path | str) -> None:
    now = [1_000_000.0]
    database = AccessDatabase(location)
    store = SessionStore(database, lambda: now[0])
    identifier, _ = store.create(User("ana", "viewer"))
    now[0] += IDLE_SEC - 1
    assert store.peek(identifier) is not None
    now[0] += 2
    assert store.peek(identifier) is None
    database.close()


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["a", "b"])), max_size=60))
def test_a_limit_allows_its_number_at_once_and_then_its_rate(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, str]]
) -> None:
    now = [1_000_000.0]
    database = AccessDatabase(tmp_path_factory.mktemp("limit") / "limits.db")
    buckets = (MemoryBuckets(lambda: now[0]), SharedBuckets(database, lambda: now[0]))
    memory, shared = (RateLimit("x", each, 4, 60.0) for each in buckets)
    allowed: dict[str, list[float]] = {"a": [], "b": []}
    for pause, key in steps:
        now[0] += pause
        waits = (memory.take(key), shared.take(key))
        assert waits[0] == pytest.approx(waits[1], abs=0.01)
        if waits[1] == 0:
            allowed[key].append(now[0])
        else:
            assert waits[1] <= 15.01
    database.close()
    for moments in allowed.values():
        for first, begin in enumerate(moments):
            for last in range(first, len(moments)):
                assert last - first + 1 <= 4 + (moments[last] - begin) / 15 + 1e-6


def test_a_database_that_does_not_answer_lets_nobody_in(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tmp_path / "own" / "sessions.db")
    with fleet.start() as client:
        fleet.log_in(client)
        client.app.state["access"].database.close()
        for file in (tmp_path / "own").iterdir():
            file.unlink()
        (tmp_path / "own" / "sessions.db").mkdir()

        refused = client.get("/runs", follow_redirects=False)
        assert refused.status_code == 503
        # Nobody is logged in, so the page does not say where the database is.
        assert "sessions.db" not in refused.text
        assert client.get("/api/v1/jobs").status_code == 503
        assert client.post("/login", data={"token": fleet.token}).status_code == 503
        token = {"authorization": f"Bearer {fleet.token}"}
        client.cookies.clear()
        assert client.get("/jobs", headers=token).status_code == 200


def test_a_lost_connection_is_opened_again(postgres_server: str) -> None:
    database = AccessDatabase(new_database(postgres_server))
    store = SessionStore(database)
    identifier, _ = store.create(User("ana", "viewer"))
    with pytest.raises(StoreError):
        database.query("SELECT pg_terminate_backend(pg_backend_pid())")
    assert store.get(identifier) is not None
    database.close()


def test_dashboards_with_other_users_do_not_share_sessions(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        add_user(tmp_path / name / "users.toml", "ana", "admin")
    one, two = (
        DashboardSettings(jobs_dir=tmp_path / "jobs", users=tmp_path / name / "users.toml")
        for name in ("one", "two")
    )
    assert one.sessions_location() != two.sessions_location()
    first, second = AccessControl.of(one), AccessControl.of(two)
    identifier, _ = first.sessions.create(first.users[0])
    assert second.sessions.get(identifier) is None
    first.close()
    second.close()


def test_a_file_of_settings_stands_below_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.toml"
    path.write_text("port = 1\nhost = '127.0.0.2'\nmonitor = 'm.db'\nsessions = 's.db'\n")
    settings = read_settings(path, {"port": 2, "host": "127.0.0.1", "users": None})

    assert (settings.port, settings.host) == (2, "127.0.0.2")
    assert (settings.monitor, settings.sessions) == (Path("m.db"), Path("s.db"))
    for text, why in (("port = 'x'", "port"), ("other = 1", "other"), ("=", "not a file")):
        path.write_text(text)
        with pytest.raises(UsageError, match=why):
            read_settings(path, {})


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.7, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.7, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "203.0.113.9, nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("::ffff:10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("nonsense", "203.0.113.9", "nonsense"),
    ],
)
def test_a_forwarded_address_counts_only_behind_a_trusted_proxy(
    peer: str, forwarded: str, expected: str
) -> None:
    request = RequestFactory().get("/", headers={"x-forwarded-for": forwarded})
    request.scope["client"] = (peer, 1)

    assert remote_address(request, read_networks(["10.0.0.0/8"])) == expected
    assert remote_address(request, ()) == peer


def test_a_wrong_network_is_refused_and_a_network_of_ipv6_is_one_client() -> None:
    with pytest.raises(UsageError, match="not an address"):
        read_networks(["10.0.0.1/8"])
    assert limit_key("2001:db8::1") == limit_key("2001:db8::ffff") != limit_key("2001:db8:1::1")
    assert limit_key("192.0.2.1") != limit_key("192.0.2.2")
