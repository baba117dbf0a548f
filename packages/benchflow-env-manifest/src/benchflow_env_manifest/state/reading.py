"""Reading several backends into one state."""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchflow_contracts import EnvState

from .backend import StateBackend

T = TypeVar("T")


async def in_folder(work: Callable[[Path], Awaitable[T]]) -> T:
    """Do `work` with an empty host directory for copies."""
    with tempfile.TemporaryDirectory(prefix="benchflow-state-") as folder:
        return await work(Path(folder))


async def read_all(backends: Sequence[StateBackend], *, still: bool) -> EnvState:
    """Read each in turn; `still` as in `StateBackend.read`."""
    return merged([await in_folder(partial(each.read, still=still)) for each in backends])


def merged(states: Sequence[EnvState]) -> EnvState:
    """Return one state of several that share nothing."""
    return EnvState(
        databases={name: tables for each in states for name, tables in each.databases.items()},
        files={path: digest for each in states for path, digest in each.files.items()},
    )
