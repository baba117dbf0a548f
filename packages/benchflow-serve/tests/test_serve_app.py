"""The application: who may send requests, and the bodies of errors."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_serve import RolloutService, ServeSettings, create_app
from benchflow_serve.security import token_digest
from litestar import Litestar
from litestar.testing import TestClient

TOKEN = "a-token-that-is-long-enough"


@contextmanager
def open_client(settings: ServeSettings) -> Generator[TestClient[Litestar]]:
    """Yield a client of the application, without a socket."""
    app = create_app(RolloutService(settings))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    (tmp_path / "tokens").write_text(f"# of the trainer\nsha256:{token_digest(TOKEN)}\n")
    return ServeSettings(directory=tmp_path / "serve", token_file=tmp_path / "tokens")


def test_health_needs_no_token_and_the_rest_does(settings: ServeSettings) -> None:
    with open_client(settings) as client:
        assert client.get("/v1/health").status_code == 200
        refused = client.get("/openapi.json")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["type"] == "NotAuthorizedException"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        document = client.get("/openapi.json", headers=headers).json()
        assert document["openapi"].startswith("3.1")


@pytest.mark.parametrize("value", ["", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer"])
def test_a_wrong_token_is_refused(settings: ServeSettings, value: str) -> None:
    with open_client(settings) as client:
        headers = {"Authorization": value}
        assert client.get("/openapi.json", headers=headers).status_code == 401


def test_a_foreign_host_is_refused(settings: ServeSettings) -> None:
    with open_client(settings) as client:
        refused = client.get("/v1/health", headers={"Host": "evil.example"})
        assert refused.status_code == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://localhost:8643", 200),
    ],
)
def test_a_page_of_another_site_is_refused(
    settings: ServeSettings, origin: str, status: int
) -> None:
    with open_client(settings) as client:
        answer = client.get("/v1/health", headers={"Origin": origin})
        assert answer.status_code == status


def test_no_auth_is_for_the_loopback_alone(tmp_path: Path) -> None:
    settings = ServeSettings(directory=tmp_path, no_auth=True, host="0.0.0.0")
    with pytest.raises(UsageError, match="any machine"):
        create_app(RolloutService(settings))


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("short\n")
    settings = ServeSettings(directory=tmp_path, token_file=tmp_path / "tokens")
    with pytest.raises(UsageError, match="5 characters"):
        create_app(RolloutService(settings))


def test_a_service_without_tokens_makes_one_that_only_its_user_reads(tmp_path: Path) -> None:
    settings = ServeSettings(directory=tmp_path / "serve")
    with open_client(settings) as client:
        path = settings.directory / "token"
        assert path.stat().st_mode & 0o777 == 0o600
        headers = {"Authorization": f"Bearer {path.read_text().strip()}"}
        assert client.get("/openapi.json", headers=headers).status_code == 200
