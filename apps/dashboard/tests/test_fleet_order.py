"""The order of the providers on the page of the fleet."""

from collections.abc import Sequence

from benchflow_contracts import SandboxError, SandboxRecord
from benchflow_dashboard.fleet.reader import FleetReader


def test_what_lives_comes_first_and_what_cannot_be_read_comes_last() -> None:
    def read(name: str) -> Sequence[SandboxRecord]:
        if name == "broken":
            raise SandboxError("no credentials")
        one = SandboxRecord(id="one", provider=name, owner_alive=True, created_at=1.0)
        return [one] if name == "used" else []

    fleet = FleetReader(lambda: (), names=lambda: ("broken", "idle", "used"), read=read)
    view = fleet.view(wait_sec=30)
    places = {each.provider: each.place for each in view.providers}
    assert sorted(places, key=places.__getitem__) == ["used", "idle", "broken"]
