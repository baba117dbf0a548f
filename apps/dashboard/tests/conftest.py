"""One application for each test, on a jobs directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchflow_dashboard import DashboardSettings, create_app
from litestar import Litestar
from litestar.testing import TestClient
from postgres_server import new_database, running_postgres

ADDRESS = "http://127.0.0.1:8642"


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of a test out of the user's data."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def postgres_server(postgres_programs: Path) -> Iterator[str]:
    """Start one server for all tests of the dashboard."""
    with running_postgres(postgres_programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Return a new database: a file, and on a server."""
    if request.param == "sqlite":
        return tmp_path / "database.db"
    return new_database(request.getfixturevalue("postgres_server"))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.fixture
def settings(jobs: Path, tmp_path: Path) -> DashboardSettings:
    return DashboardSettings(jobs_dir=jobs, index=tmp_path / "index.db")


@pytest.fixture
def client(settings: DashboardSettings) -> Iterator[TestClient[Litestar]]:
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        yield client
