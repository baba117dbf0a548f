"""Kernel objects over real forks, held against the page of their verdicts."""

import asyncio
import ctypes
from pathlib import Path

import pytest
from hazards.in_sandbox.objects import OBJECTS
from hazards.page import PAGE, read_page, try_objects, verdict_of

pytestmark = pytest.mark.usefixtures("root")

SAMPLE = (
    "CPU time that a process has used",
    "POSIX lock of a part of a file",
    "TCP, unread bytes both ways",
    "anonymous, shared by two processes",
    "eventfd with a count",
    "named stream: listening and connected",
    "open file, deleted",
    "process that has ended and was not waited for (zombie)",
    "raw socket",
    "timerfd, relative",
)
"""All objects take minutes on CRIU, and more on gVisor."""

_PR_GET_SPECULATION_CTRL = 52


def missing_from_hardware():
    """Name the objects of the page that no process on this machine's CPU can make."""
    if " ospke" not in Path("/proc/cpuinfo").read_text():
        yield "protection key"
    if not ctypes.CDLL(None).prctl(_PR_GET_SPECULATION_CTRL, 0, 0, 0, 0) & 1:
        yield "mitigations of speculation (PR_SET_SPECULATION_CTRL)"


def verdicts(engine, names):
    """Return what the page says, and what forks find."""
    known = {name: read_page(PAGE.read_text())[engine][name] for name in names}
    found = asyncio.run(try_objects(engine, names, known))
    return tuple({name: verdict_of(cell) for name, cell in each.items()} for each in (known, found))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_object_is_carried_or_refused_on_criu_as_the_page_says(criu):
    known, found = verdicts("criu", list(OBJECTS))
    assert found == known | dict.fromkeys(missing_from_hardware(), "absent")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sample_of_objects_is_carried_or_refused_on_criu_as_the_page_says(criu):
    known, found = verdicts("criu", list(SAMPLE))
    assert found == known


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sample_of_objects_fares_on_gvisor_as_the_page_says(runsc):
    known, found = verdicts("runsc", list(SAMPLE))
    assert found == known
