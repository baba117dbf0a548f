"""A fork against a replay from the start, by depth and by size of state, in milliseconds.

A step is one real command in the box that starts a Python and appends a row to a database.
Replaying d steps costs d of them; forking costs the child alone, and the snapshot is shared
by all children.
"""

import asyncio
import sys
import time
from typing import Literal

from benchflow_contracts import Sandbox, SandboxImage, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from report import emit

DEPTHS = (5, 20, 40)
SIZES_MB = (0, 50, 200)
RUNS = 5
SPEC = SandboxSpec()
STEP = (
    "python3 -c \"import sqlite3; c = sqlite3.connect('state.db');"
    " c.execute('create table if not exists step (n)');"
    " c.execute('insert into step values (1)'); c.commit()\""
)
COUNT = "python3 -c \"import sqlite3; print(*sqlite3.connect('state.db').execute(\
'select count(*) from step').fetchone())\""

Level = Literal["filesystem", "live"]


async def step(box: Sandbox, times: int) -> None:
    """Act `times` times in the box."""
    for _ in range(times):
        done = await box.exec(STEP)
        assert done.ok, done.stderr


async def grown(provider: LocalProvider, size: int, depth: int) -> Sandbox:
    """Return a box that is `depth` steps old and holds `size` MB of state."""
    box = await provider.create(SPEC)
    done = await box.exec(f"head -c {size << 20} /dev/urandom > filler")
    assert done.ok, done.stderr
    await step(box, depth)
    return box


async def checked(box: Sandbox, depth: int) -> None:
    """Hold the box against what it must have seen, and throw it away."""
    seen = await box.exec(COUNT)
    assert int(seen.stdout) == depth, seen
    await box.teardown()


async def replayed(provider: LocalProvider, size: int, depth: int) -> float:
    """Come to the state from the start, and return how long that took."""
    started = time.perf_counter()
    box = await grown(provider, size, depth)
    took = time.perf_counter() - started
    await checked(box, depth)
    return took * 1000


async def forked(provider: LocalProvider, image: SandboxImage, depth: int) -> float:
    """Make a child of the state, and return how long that took."""
    started = time.perf_counter()
    box = await provider.create(SPEC, image=image)
    took = time.perf_counter() - started
    await checked(box, depth)
    return took * 1000


async def compare(provider: LocalProvider, level: Level, size: int, depth: int) -> None:
    """Print a line about one place in the grid."""
    replays = [await replayed(provider, size, depth) for _ in range(RUNS)]
    box = await grown(provider, size, depth)
    started = time.perf_counter()
    image = await box.snapshot(level)
    snapshot = (time.perf_counter() - started) * 1000
    children = [await forked(provider, image, depth) for _ in range(RUNS)]
    await box.teardown()
    await provider.discard(image)
    peer = sorted(replays)[RUNS // 2]
    emit(
        f"fork_cost_{level}_{size}mb_d{depth}",
        children,
        peer="replay from the start",
        peer_median=round(peer, 2),
        ratio=round(peer / sorted(children)[RUNS // 2], 2),
        snapshot_ms=round(snapshot, 2),
        pays_from_children=_pays(peer, sorted(children)[RUNS // 2], snapshot),
    )


def _pays(replay: float, child: float, snapshot: float) -> int | None:
    """Return the number of children from which the snapshot has paid for itself."""
    return None if replay <= child else int(snapshot // (replay - child)) + 1


async def main() -> int:
    """Print the grid for every level that this machine has."""
    provider = LocalProvider()
    try:
        levels = (await provider.capabilities()).snapshot_levels
        for level in sorted(levels, key=("filesystem", "live").index):
            for size in SIZES_MB:
                for depth in DEPTHS:
                    await compare(provider, level, size, depth)
    finally:
        await provider.aclose()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
