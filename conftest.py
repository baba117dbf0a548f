"""What tests need of a machine. One that lacks it skips them, but a CI fails.

A CI that skipped them would test nothing and look green.
"""

import os
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

pytest_plugins = ["session_reports"]

# An example is a package outside the workspace, which `tests/e2e/test_third_party.py` installs.
collect_ignore = ["docs/examples"]

# A loaded machine is no reason to fail: times belong to `benchmarks/perf`.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# `nohup` makes all that it starts ignore this signal, and BenchFlow respects that.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _lacking(why: str) -> NoReturn:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(why)


def _exported(variable: str, script: str, found: str | None = None) -> str:
    return os.environ.get(variable) or found or _lacking(f"export {variable}=$({script})")


@pytest.fixture(scope="session")
def root() -> None:
    """Need what only root may do: mounts, users, boxes with users."""
    if os.geteuid() != 0:
        _lacking("this needs root")


@pytest.fixture(scope="session")
def image() -> str:
    """Return the base image, which an engine has."""
    return _exported("BENCHFLOW_DOCKER_IMAGE", ".ci/docker")


@pytest.fixture(scope="session")
def older_engine() -> Path:
    """Return the directory of the programs of Docker 20.10, the oldest engine."""
    return Path(_exported("BENCHFLOW_OLDER_ENGINE", ".ci/engine-older"))


@pytest.fixture(scope="session")
def registry_program() -> str:
    """Return a registry's program."""
    return _exported("BENCHFLOW_REGISTRY", ".ci/registry")


@pytest.fixture(scope="session")
def harbor_python() -> str:
    """Return the Python of an environment that has Harbor."""
    return _exported("BENCHFLOW_HARBOR", ".ci/harbor")


@pytest.fixture(scope="session")
def compose() -> str:
    """Return the directory of a Docker client that has compose."""
    return _exported("BENCHFLOW_COMPOSE", ".ci/compose")


@pytest.fixture(scope="session")
def criu() -> str:
    """Return the program that takes live snapshots."""
    return _exported("BENCHFLOW_CRIU", ".ci/criu", shutil.which("criu"))


@pytest.fixture(scope="session")
def runsc() -> str:
    """Return gVisor's program."""
    return _exported("BENCHFLOW_RUNSC", ".ci/runsc", shutil.which("runsc"))


@pytest.fixture(scope="session")
def strace() -> str:
    """Return the program that fails or kills at a chosen system call."""
    return shutil.which("strace") or _lacking("this needs strace")


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """Return the directory of PostgreSQL's programs, which are not on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found else _lacking("this needs PostgreSQL")


@pytest.fixture(scope="session")
def chromium_program() -> str:
    """Return the browser of Debian."""
    return shutil.which("chromium") or _lacking("this needs Chromium")
