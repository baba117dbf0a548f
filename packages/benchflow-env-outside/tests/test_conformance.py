"""The conformance kit, over the real tool server."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import WorldSnapshots
from benchflow_env_outside import OutsideEnvironment
from benchflow_testing import call_tool, check_outside_world

sys.path.insert(0, str(Path(__file__).parent))
from worlds import CopiedCounter, Counter, JudgedCounter


@pytest.mark.parametrize(
    ("client", "snapshots"),
    [
        (Counter, "replay"),
        (JudgedCounter, "none"),
        (CopiedCounter, "live"),
        (CopiedCounter, "state"),
    ],
)
def test_a_world_over_a_client_keeps_every_promise(client: Any, snapshots: WorldSnapshots) -> None:
    def make() -> OutsideEnvironment:
        return OutsideEnvironment("counter", client, {}, snapshots=snapshots)

    results = asyncio.run(check_outside_world(make, call_tool("add", {})))
    assert [(r.name, r.reason) for r in results if r.status == "failed"] == []
