"""Hostile requests to every route: never a server error, nothing without a login, no other file."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import requests
import schemathesis
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import RunQuery, update_index
from benchflow_dashboard.monitor.keys import add_key
from benchflow_dashboard.security.users import add_user
from dashboard_forms import csrf_of
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import tree_of_all_kinds
from route_schema import public_paths, route_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from litestar import Litestar

ADDRESS = "http://127.0.0.1:8642"
CANARY = "canary-5c1e0b"
TREE = tree_of_all_kinds()
HOSTILE = (
    *("../canary.txt", "..%2fcanary.txt", "/etc/hostname", "....//canary.txt", "link", "leak"),
    *("link/../canary.txt", "\0", "canary.txt\0", "%00", "a\r\nb: c", "-1", "9" * 30, "NaN", "."),
    *("' OR 1=1 --", "%", "*", "<script>", "\u202e", "\uffff"),
)
KNOWN = ("job", TREE.rollout_id, TREE.root.id, TREE.leaves[0].id, "1", "-when", "24h")
SETTINGS = hypothesis.settings(
    max_examples=40,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


class Site:
    """A dashboard with a user of each role, and links out of its jobs directory."""

    def __init__(self, home: Path) -> None:
        users = home / "users.toml"
        self.tokens = {role: add_user(users, role, role) for role in ("viewer", "admin")}  # type: ignore[arg-type]
        jobs = home / "jobs"
        (home / "canary.txt").write_text(CANARY)
        write_rollout(TREE, jobs / "job" / TREE.rollout_id)
        (jobs / "link").symlink_to(home)
        leak = jobs / "leak"
        leak.mkdir()
        for name in ("events.jsonl", "result.json", "job.json", "config.json", "record.db"):
            (leak / name).symlink_to(home / "canary.txt")
        settings = DashboardSettings(
            jobs_dir=jobs,
            index=home / "index.db",
            monitor=home / "monitor.db",
            users=users,
            ingest_keys=home / "keys.toml",
        )
        self.key = add_key(home / "keys.toml", "agent")
        update_index(home / "index.db", jobs)
        self.app = create_app(settings)
        # A live stream then ends after its first event.
        self.app.state["stop"].set()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def client(site: Site) -> Iterator[TestClient[Litestar]]:
    with TestClient(site.app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


def names_in_pages() -> set[str]:
    """Return the parameters that links and forms of the templates have."""
    templates = (files("benchflow_dashboard") / "templates").iterdir()
    text = "".join(each.read_text() for each in templates)
    found = set(re.findall(r'\bname="([a-z_]+)"|[?&;]([a-z_]+)=', text))
    names = {name for pair in found for name in pair if name}
    return names | {each.name for each in fields(RunQuery)} - {"csrf"}


def send(client: TestClient[Litestar], case: Any, headers: dict[str, str]) -> Any:
    """Send a case of schemathesis through the application, without a socket."""
    made = requests.Request(**case.as_transport_kwargs(base_url=ADDRESS)).prepare()
    sent = {**made.headers, **headers}
    url, body = str(made.url), made.body
    return client.request(str(made.method), url, headers=sent, content=body, follow_redirects=False)


def each_case(description: dict[str, Any], check: Callable[[Any], None]) -> int:
    """Run `check` with the cases of each operation. Return the number of operations."""
    schema = schemathesis.openapi.from_dict(description)
    operations = [each.ok() for each in schema.get_all_operations()]
    for operation in operations:
        SETTINGS(hypothesis.given(operation.as_strategy())(check))()
    return len(operations)


def log_in(client: TestClient[Litestar], token: str) -> dict[str, str]:
    """Log in, and return the headers of the session. The client forgets it."""
    client.post("/login", data={"token": token}, follow_redirects=False)
    headers = {"x-csrf-token": csrf_of(client)}
    headers["cookie"] = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    client.cookies.clear()
    return headers


def require_login(answer: Any) -> None:
    """Allow an error of the request, or a way to the login."""
    if answer.status_code < 400:
        assert answer.status_code == 302, answer.request.url
        assert answer.headers["location"].startswith("/login?next=%2F")


# Each case goes to everybody: to make a case takes longer than to send it.
@pytest.mark.timeout(300)
def test_no_route_fails_leads_out_of_the_jobs_directory_or_shows_itself_without_a_login(
    site: Site, client: TestClient[Litestar]
) -> None:
    public = public_paths(site.app)
    sessions = [
        {**log_in(client, token), "x-benchflow-key": site.key} for token in site.tokens.values()
    ]

    def check(case: Any) -> None:
        for headers in ({}, *sessions):
            if headers and case.operation.path in ("/login", "/logout"):
                continue
            answer = send(client, case, headers)
            client.cookies.clear()
            assert answer.status_code < 500, (answer.request.url, answer.text)
            assert CANARY not in answer.text
            if headers:
                assert answer.status_code != 401, answer.request.url
                policy = answer.headers["content-security-policy"]
                assert policy.startswith("default-src 'none'")
            elif case.operation.path not in public:
                require_login(answer)

    description = route_schema(site.app, (*KNOWN, *HOSTILE), names_in_pages())
    assert each_case(description, check) > len(public) + 15
    for headers in sessions:
        answer = client.get("/runs", headers=headers, follow_redirects=False)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fcanary.txt",
        "/static/%2e%2e/canary.txt",
        "/static//etc/hostname",
        "/static/%00",
        "/r/..%2fcanary.txt",
        "/r/%00",
        "/r/leak",
        "/jobs/link",
        "/jobs/%2e%2e",
        "/api/v1/jobs/..%2f..%2fcanary.txt",
        "/api/v1/jobs/%00",
        "/monitor/r/%ff%fe",
    ],
)
def test_a_path_that_is_not_plain_text_finds_nothing_else(
    site: Site, client: TestClient[Litestar], path: str
) -> None:
    token = {"authorization": f"Bearer {site.tokens['viewer']}"}
    answer = client.get(path, headers=token, follow_redirects=False)

    assert answer.status_code < 500
    assert CANARY not in answer.text
    assert not path.startswith("/static") or answer.status_code == 404


def test_answers_of_the_api_are_as_its_description_says(
    site: Site, client: TestClient[Litestar]
) -> None:
    token = {"authorization": f"Bearer {site.tokens['viewer']}"}
    assert client.get("/api/v1/schema/openapi.json").status_code == 401
    description = client.get("/api/v1/schema/openapi.json", headers=token).json()
    assert "cdn" not in str(description)

    def check(case: Any) -> None:
        answer = send(client, case, token)
        case.validate_response(schemathesis.Response.from_any(answer), headers=token)

    assert each_case(description, check) >= 3
