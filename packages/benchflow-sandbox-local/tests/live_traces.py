"""What is left of live forks: processes, files and mounts."""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

MANY_FILES = "seq 1 600 | xargs touch"
"""With these a box is not kept over a dump, but brought back."""


def launchers(store):
    """Yield the directories in /proc of the launchers of this store, and of their forks."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_text(errors="replace")  # others' may be anything
            if "launcher_process.server" in line and str(store) in line:
                yield path.parent


def left(store):
    """Return the names of what the launchers of this store keep for live images."""
    found = set()
    for path in launchers(store):
        for place in ("work", "images"):
            # A launcher's forks look like it, and come and go.
            with suppress(OSError):
                found.update(each.name for each in (path / f"root{store}/mnt" / place).iterdir())
    return found


def traces(store):
    """Count what a box can leave: files, mounts, and what holds namespaces or processes."""
    mounts = set()
    for path in launchers(store):
        with suppress(OSError):
            if os.getsid(int(path.name)) != int(path.name):
                continue  # a fork, which has mounts of its own
            lines = (path / "mountinfo").read_text().splitlines()
            mounts.update(line.split()[4] for line in lines)
    held = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            held.append(str(path.readlink()).partition(":")[0])
    kinds = [kind for kind in held if kind in {"net", "anon_inode"}]
    return Counter([*left(store), *mounts, *kinds])


async def echo(process, text):
    await process.stdin.write(text)
    async with asyncio.timeout(60):
        return await process.stdout.read()
