"""The check of open files before a job, in a process with a limit of its own."""

import re
import subprocess
import sys

import pytest

CHECK = """
import resource, sys
soft, hard, concurrency, each = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from benchflow_contracts import UsageError
from benchflow_engine.descriptors import check_descriptors
from benchflow_testing.fakes import FakeSandboxProvider

class Provider(FakeSandboxProvider):
    open_files_per_rollout = each

try:
    check_descriptors(Provider(), concurrency)
except UsageError as error:
    print(error, "|", error.hint)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def check(soft: int, hard: int, concurrency: int, each: int = 12) -> list[str]:
    words = [sys.executable, "-c", CHECK, *map(str, (soft, hard, concurrency, each))]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_soft_limit_is_raised_and_a_job_that_fits_starts() -> None:
    assert check(128, 1024, 64) == ["(1024, 1024)"]


def test_a_job_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    [refusal, limits] = check(128, 256, 64)
    assert limits == "(256, 256)"
    assert "64 rollouts at one time need about 8" in refusal
    assert "the hard limit of this process is 256" in refusal
    found = re.search(r"--concurrency (\d+) or less, or raise the hard limit to 8", refusal)
    assert found is not None
    largest = int(found[1])
    assert 10 < largest < 20
    assert check(128, 256, largest) == ["(256, 256)"]
    assert len(check(128, 256, largest + 1)) == 2


@pytest.mark.parametrize("each", [12, 100])
def test_a_limit_below_one_rollout_has_no_concurrency_that_fits(each: int) -> None:
    [refusal, _] = check(70, 70, 1, each)
    assert "--concurrency" not in refusal
    assert "raise the hard limit to" in refusal
