"""Work that may begin before its premise is proven."""

import asyncio
from collections.abc import Awaitable, Callable

from benchflow_contracts import BenchFlowError

from .boundary import boundary


async def proven(proof: Awaitable[None], work: Callable[[], Awaitable[None]] | None) -> None:
    """Do `work` while `proof` is made; `None` is no work.

    When the proof fails, or the caller is cancelled, the work is cancelled and has ended
    before this raises. A failure of the work is told only once the proof holds: in a world
    that is not proven it says nothing.

    Raises:
        BenchFlowError: What the proof raised; else what the work raised.
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
