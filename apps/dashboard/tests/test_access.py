"""Who may do what: logins, sessions, roles, forms and foreign pages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_contracts import UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.security.users import add_user, read_users
from dashboard_forms import csrf_of
from litestar.testing import TestClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from litestar import Litestar

ADDRESS = "https://127.0.0.1:8642"
PAGES = ("/runs", "/jobs", "/monitor", "/alerts", "/help", "/", "/api/v1/runs", "/metrics")


class Site:
    """A dashboard with three users."""

    def __init__(self, directory: Path) -> None:
        self.users = directory / "users.toml"
        self.tokens = {
            role: add_user(self.users, role, role)  # type: ignore[arg-type]
            for role in ("viewer", "operator", "admin")
        }
        (directory / "jobs").mkdir()
        config = directory / "monitor.toml"
        config.write_text("[[alerts]]\nname = 'silent'\nkind = 'absence'\n")
        settings = DashboardSettings(
            jobs_dir=directory / "jobs",
            index=directory / "index.db",
            monitor=directory / "monitor.db",
            monitor_config=config,
            users=self.users,
            https=True,
        )
        self.audit = directory / "audit.jsonl"
        self.app = create_app(settings)

    def log_in(self, client: TestClient[Litestar], role: str) -> None:
        """Log a browser in."""
        answer = client.post(
            "/login", data={"token": self.tokens[role], "next": "/runs"}, follow_redirects=False
        )
        assert answer.status_code == 303

    def actions(self) -> list[tuple[str, str, str]]:
        """Return the user, the action and the outcome of each line of the audit log."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [(line["user"], line["action"], line["outcome"]) for line in lines]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def client(site: Site) -> Iterator[TestClient[Litestar]]:
    with TestClient(site.app, base_url=ADDRESS) as client:
        yield client


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_without_a_login(client: TestClient[Litestar], path: str) -> None:
    answer = client.get(path, follow_redirects=False)

    if path.startswith(("/api", "/metrics")):
        assert answer.status_code == 401
    else:
        assert answer.status_code == 302
        assert answer.headers["location"].startswith("/login?next=")


def test_a_login_leads_back_and_its_cookie_is_safe(
    site: Site, client: TestClient[Litestar]
) -> None:
    form = {"token": site.tokens["viewer"], "next": "/runs?status=failed"}
    answer = client.post("/login", data=form, follow_redirects=False)

    assert answer.headers["location"] == "/runs?status=failed"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-benchflow=")
    for flag in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert flag in cookie
    assert client.get("/runs").status_code == 200
    assert site.tokens["viewer"] not in site.users.read_text()


def test_a_session_id_that_was_set_before_a_login_is_worth_nothing(
    site: Site, client: TestClient[Litestar]
) -> None:
    client.cookies.set("__Host-benchflow", "chosen-by-an-attacker")
    client.post("/login", data={"token": site.tokens["admin"]}, follow_redirects=False)
    own = client.cookies.get("__Host-benchflow", domain="127.0.0.1")
    assert own != "chosen-by-an-attacker"
    client.cookies.clear()
    client.cookies.set("__Host-benchflow", "chosen-by-an-attacker")

    assert client.get("/runs", follow_redirects=False).status_code == 302


def test_a_bearer_token_reads_the_api(site: Site, client: TestClient[Litestar]) -> None:
    headers = {"authorization": f"Bearer {site.tokens['viewer']}"}
    assert client.get("/api/v1/runs", headers=headers).status_code == 200
    wrong = {"authorization": "Bearer bfd_wrong"}
    assert client.get("/api/v1/runs", headers=wrong).status_code == 401


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_only_an_operator_silences_an_alert_and_it_is_audited(
    site: Site, client: TestClient[Litestar], role: str
) -> None:
    site.log_in(client, role)
    form = {"rule": "silent", "hours": "1", "csrf": csrf_of(client)}

    answer = client.post("/alerts/silence", data=form, follow_redirects=False)

    assert answer.status_code == (403 if role == "viewer" else 303)
    expected = [(role, "login", "ok")]
    expected += [] if role == "viewer" else [(role, "silence", "ok")]
    assert site.actions() == expected


def test_a_form_needs_the_token_of_its_own_session(
    site: Site, client: TestClient[Litestar]
) -> None:
    site.log_in(client, "operator")
    other = csrf_of(client)
    site.log_in(client, "operator")

    for csrf in ("", "wrong", other):
        form = {"rule": "silent", "hours": "1", "csrf": csrf}
        assert client.post("/alerts/silence", data=form).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:1"},
        {"origin": "http://[127.0.0.1:8642"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_cannot_send_a_form(tmp_path: Path, headers: dict[str, str]) -> None:
    (tmp_path / "jobs").mkdir()
    settings = DashboardSettings(
        jobs_dir=tmp_path / "jobs", index=tmp_path / "i.db", monitor=tmp_path / "m.db"
    )
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        form: dict[str, Any] = {"theme": "dark", "back": "/", "csrf": csrf_of(client)}
        own = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
        assert client.post("/theme", data=form, headers=own).status_code == 200
        assert client.post("/theme", data=form, headers=headers).status_code == 403
        assert client.post("/v1/traces", content=b"", headers=headers).status_code == 403


def test_a_logout_ends_the_session(site: Site, client: TestClient[Litestar]) -> None:
    site.log_in(client, "viewer")
    kept = client.cookies.get("__Host-benchflow")
    csrf = csrf_of(client)
    assert client.post("/logout", data={"csrf": csrf}, follow_redirects=False).status_code == 303

    client.cookies.set("__Host-benchflow", str(kept))
    assert client.get("/runs", follow_redirects=False).status_code == 302


def test_wrong_tokens_are_limited_and_audited(site: Site, client: TestClient[Litestar]) -> None:
    statuses = [client.post("/login", data={"token": "x"}).status_code for _ in range(40)]

    # A slow machine may allow a further attempt after each six seconds.
    assert statuses[:10] == [401] * 10
    assert 429 in statuses
    assert site.actions() == [("", "login", "refused")] * statuses.count(401)


def test_traces_need_an_ingest_key_where_pages_need_a_login(
    site: Site, client: TestClient[Litestar]
) -> None:
    headers = {"authorization": f"Bearer {site.tokens['admin']}"}
    answer = client.post("/v1/benchflow/records", content=b'{"records": []}', headers=headers)

    assert answer.status_code == 401


@pytest.mark.parametrize(
    "text", ["", "x =", "[ana]\nrole = 'viewer'", "[ana]\ndigest = '0'\nrole = 'x'"]
)
def test_a_wrong_file_of_users_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)

    with pytest.raises(UsageError):
        read_users(path)
