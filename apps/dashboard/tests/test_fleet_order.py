"""The providers on the page of the fleet: their order, and the words about one that fails."""

from collections.abc import Sequence

import pytest
from benchflow_contracts import SandboxError, SandboxRecord
from benchflow_dashboard import DashboardSettings, app, create_app
from benchflow_dashboard.fleet.reader import FleetReader
from litestar.testing import TestClient


def read(name: str) -> Sequence[SandboxRecord]:
    if name == "broken":
        raise SandboxError("broken: no credentials")
    one = SandboxRecord(id="one", provider=name, owner_alive=True, created_at=1.0)
    return [one] if name == "used" else []


def made_fleet(_: object = None) -> FleetReader:
    return FleetReader(lambda: (), names=lambda: ("broken", "idle", "used"), read=read)


def test_what_lives_comes_first_and_what_cannot_be_read_comes_last() -> None:
    view = made_fleet().view(wait_sec=30)
    places = {each.provider: each.place for each in view.providers}
    assert sorted(places, key=places.__getitem__) == ["used", "idle", "broken"]


def test_the_page_names_a_provider_that_fails_once(
    settings: DashboardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "FleetReader", made_fleet)
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8642") as client:
        text = client.get("/fleet").text
    assert ">broken: no credentials" in text
    assert "broken: broken" not in text
