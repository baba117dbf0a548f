"""One application for each test, on a jobs directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchflow_dashboard import DashboardSettings, create_app
from litestar import Litestar
from litestar.testing import TestClient

ADDRESS = "http://127.0.0.1:8642"


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
