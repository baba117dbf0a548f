"""Our side of the Open Reward Standard, judged by the two published packages."""

import json
import subprocess
from pathlib import Path

import judge_package
import pytest
from ors_streams import PEERS, random_streams

pytestmark = pytest.mark.foreign
DRIVERS = Path(__file__).parents[1] / "support" / "ors_peers"


@pytest.fixture(scope="session", params=sorted(PEERS))
def peer(request: pytest.FixtureRequest) -> tuple[str, Path]:
    name: str = request.param
    return name, judge_package.install_once(PEERS[name])


def test_a_published_client_loses_no_character_of_our_streams(peer: tuple[str, Path]) -> None:
    name, python = peer
    done = subprocess.run(
        [python, DRIVERS / "read_streams.py", name, "1"],
        input="".join(random_streams(20_000, seed=1)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["lost"] == 0
    assert report["characters"] > 10_000
