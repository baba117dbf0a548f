"""Plugins of pytest that the agent brought: any package may offer one, by whatever name."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchflow_contracts import Sandbox, TransferError

from .steering import Change

_MAX_READ = 64
_MAX_BYTES = 1 << 20


async def brought_plugins(
    twin: Sandbox, changes: Mapping[str, Change], links: Mapping[str, str]
) -> set[str]:
    """Return which of `changes` have pytest load what their package offers it.

    What is there and cannot be read counts: a link, more than 1 MiB, and all beyond the 64th.
    So does a link in the place of a package's own directory.
    """
    there = [path for path, change in changes.items() if change != "removed"]
    linked = {path for path in there if path in links and path.lower().endswith("-info")}
    # The interpreter looks for the directory in any letter case.
    offers = [path for path in there if path.lower().endswith("-info/entry_points.txt")]
    found = {path for path in offers[:_MAX_READ] if await _offers_one(twin, path)}
    return linked | found | {*offers[_MAX_READ:]}


async def _offers_one(twin: Sandbox, path: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="bf-offers-") as scratch:
        local = Path(scratch) / "offers"
        try:
            await twin.download(path, local, max_bytes=_MAX_BYTES)
        except TransferError:
            return True
        return local.is_file() and b"pytest11" in local.read_bytes()
