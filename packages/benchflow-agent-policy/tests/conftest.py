"""A sandbox for unit tests."""

from functools import partial

import pytest
from host_sandbox import HostSandbox, run_in_sandbox


@pytest.fixture
def host_sandbox():
    return HostSandbox


@pytest.fixture
def in_sandbox(tmp_path):
    """Run an async test body with a sandbox that is closed after it."""
    return partial(run_in_sandbox, tmp_path)
