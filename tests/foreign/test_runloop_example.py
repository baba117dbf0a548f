"""The example of a cloud's provider, with Runloop's real SDK against the server of its tests."""

import subprocess
from pathlib import Path

import pytest
from foreign_program import workspace_environment
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(400)]

RUNLOOP = "runloop_api_client==3.0.0"
EXAMPLE = Path(__file__).parents[2] / "docs/examples/benchflow-sandbox-runloop"


@pytest.mark.parametrize(
    "words",
    [("pytest", "-q", "-p", "no:cacheprovider", "tests"), ("mypy", "--strict", "src")],
    ids=["tests", "types"],
)
def test_the_example_works_with_the_sdk(tmp_path: Path, words: tuple[str, ...]) -> None:
    environment = workspace_environment(tmp_path)
    environment["PYTHONPATH"] += f":{EXAMPLE}/src"
    environment["MYPY_CACHE_DIR"] = str(tmp_path / "mypy")
    done = subprocess.run(
        [install_once(RUNLOOP), "-m", *words],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
