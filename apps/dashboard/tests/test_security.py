"""What each response carries, and which requests are refused."""

from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.pages.page import local_path
from dashboard_forms import csrf_of
from litestar.testing import TestClient

PATHS = ["/runs", "/help", "/nothing", "/healthz", "/static/app.css", "/r/nothing", "/static/%00"]


@pytest.mark.parametrize("path", PATHS)
def test_each_response_has_the_security_headers(client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "worker-src 'self'" in policy
    assert "unsafe" not in policy
    assert "data:" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-opener-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST:8642", 200),
        ("[::1]:8642", 200),
        ("bench.example:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example", 421),
        ("localhost:1@evil.example", 421),
        ("[::1]evil.example", 421),
        ("", 421),
    ],
)
def test_a_foreign_host_is_refused(settings: DashboardSettings, host: str, status: int) -> None:
    settings = settings.model_copy(update={"allowed_hosts": ("bench.example",)})
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        assert client.get("/runs", headers={"host": host}).status_code == status


@pytest.mark.parametrize("path", ["/runs", "/nothing"])
def test_a_foreign_host_gets_no_page_with_the_token_of_forms(client, path: str) -> None:
    answer = client.get(path, headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert csrf_of(client) not in answer.text


def test_a_public_address_needs_authentication(jobs: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(UsageError, match="refused to listen"):
            create_app(DashboardSettings(jobs_dir=jobs, host=host))


def test_an_index_inside_the_jobs_directory_is_refused(jobs: Path) -> None:
    with pytest.raises(UsageError, match="inside the jobs directory"):
        DashboardSettings(jobs_dir=jobs, index=jobs / "a" / "index.db").index_path()


def test_the_theme_is_kept_and_leads_back_to_this_dashboard_only(client) -> None:
    answer = client.post(
        "/theme",
        data={"theme": "dark", "back": "/runs?status=failed", "csrf": csrf_of(client)},
        follow_redirects=False,
    )
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs?status=failed"
    assert '<html lang="en" data-theme="dark">' in client.get("/runs").text
    client.post("/theme", data={"theme": '"><script>', "back": "/", "csrf": csrf_of(client)})
    assert '<html lang="en">' in client.get("/runs").text


@pytest.mark.parametrize(
    "path", ["//evil", "/\\evil", "https://evil", "", "/a\r\nb", "javascript:1"]
)
def test_a_foreign_path_is_not_redirected_to(path: str) -> None:
    assert local_path(path) == "/"
