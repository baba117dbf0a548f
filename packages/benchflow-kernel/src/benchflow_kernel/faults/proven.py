"""Start work before its precondition is proven."""

import asyncio
from collections.abc import Awaitable, Callable

from benchflow_contracts import BenchFlowError

from .boundary import boundary


async def proven(proof: Awaitable[None], work: Callable[[], Awaitable[None]] | None) -> None:
    """Run `work` and `proof` at the same time; `None` means no work.

    If the proof fails, or the caller is cancelled, the work is cancelled and has ended
    before this raises. A failure of the work is raised only after the proof holds, because
    without the proof the failure means nothing.

    Raises:
        BenchFlowError: The error of the proof, else the error of the work.
    """
    if work is None:
        await proof
        return
    with boundary("internal"):
        async with asyncio.TaskGroup() as group:
            under_way = group.create_task(_failure(work))
            await proof
        failed = under_way.result()
        if failed is not None:
            raise failed


async def _failure(work: Callable[[], Awaitable[None]]) -> BenchFlowError | None:
    try:
        await work()
    except BenchFlowError as error:
        return error
    return None
