"""Building objects and checking them, as the host asks: one line of JSON each way.

Each object has a process of its own, a child of this one.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from . import objects
from .kernel_object import Lost

MISTAKE = "a mistake of this program: "
MOST_SECONDS = 25.0
"""A check that takes longer has met something that will never come."""


class Holder:
    """The process that has one object, seen from outside."""

    def __init__(self, name: str, room: Path) -> None:
        self.name = name
        told, self._tell = os.pipe()
        self._report, report = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.close(self._tell)
            os.close(self._report)
            hold(name, room, told, report)
        os.close(told)
        os.close(report)

    def tell(self) -> None:
        """Let it check its object."""
        os.write(self._tell, b"\n")

    def answer(self, until: float) -> str:
        """Return what it reports next: nothing when all is well."""
        text = b""
        while not text.endswith(b"\n"):
            left = until - time.monotonic()
            if not select.select([self._report], [], [], max(left, 0))[0]:
                return "the check did not end"
            data = os.read(self._report, 1 << 16)
            if not data:
                return "its process has ended"
            text += data
        return str(json.loads(text))


def hold(name: str, room: Path, told: int, report: int) -> None:
    """Build an object, wait, and check it."""
    room.mkdir()
    os.chdir(room)
    held = objects.OBJECTS[name].build(room)
    say(report, step(held))
    os.read(told, 1)
    say(report, step(held))
    while True:
        signal.pause()


def step(held: Iterator[None]) -> str:
    """Continue a builder; return what is wrong."""
    try:
        next(held, None)
    except Lost as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    except BaseException as error:
        return f"{MISTAKE}{error!r}"
    return ""


def say(report: int, text: str) -> None:
    """Report."""
    os.write(report, json.dumps(text).encode() + b"\n")


def main() -> None:
    """Serve: `{"build": [...]}` first, then `{"check": true}`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    root = Path(sys.argv[1])
    root.mkdir(exist_ok=True)
    holders: list[Holder] = []
    for line in sys.stdin:
        request = json.loads(line)
        if "build" in request:
            holders = [
                Holder(name, root / str(place)) for place, name in enumerate(request["build"])
            ]
        else:
            for holder in holders:
                holder.tell()
        until = time.monotonic() + MOST_SECONDS
        found = {holder.name: holder.answer(until) for holder in holders}
        if "build" in request:
            # What cannot be built here is not carried either: its process must not disturb.
            for holder in [each for each in holders if found[each.name]]:
                os.killpg(holder.pid, signal.SIGKILL)
                os.waitpid(holder.pid, 0)
                holders.remove(holder)
        sys.stdout.write(json.dumps({name: text for name, text in found.items() if text}) + "\n")
        sys.stdout.flush()
