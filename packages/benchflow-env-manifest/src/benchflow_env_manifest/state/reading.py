"""Read several backends into one state."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchflow_contracts import EnvState
from benchflow_contracts.scratch import scratch_directory

from .backend import StateBackend

T = TypeVar("T")


async def in_folder(work: Callable[[Path], Awaitable[T]]) -> T:
    """Call `work` with an empty host directory for copies."""
    with scratch_directory("state") as folder:
        return await work(Path(folder))


async def read_all(backends: Sequence[StateBackend], *, still: bool) -> EnvState:
    """Read one backend after the other; `still` as in `StateBackend.read`."""
    return merged([await in_folder(partial(each.read, still=still)) for each in backends])


async def read_copies(
    backends: Sequence[StateBackend], freeze: AbstractAsyncContextManager[bool]
) -> EnvState:
    """Copy each backend inside `freeze`, which yields `still`; read the copies afterwards."""
    with ExitStack() as folders:
        async with freeze as still:
            readers = [
                await each.copy(folders.enter_context(scratch_directory("state")), still=still)
                for each in backends
            ]
        return merged([await read() for read in readers])


def merged(states: Sequence[EnvState]) -> EnvState:
    """Merge states that have no name in common."""
    return EnvState(
        databases={name: tables for each in states for name, tables in each.databases.items()},
        files={path: digest for each in states for path, digest in each.files.items()},
    )
