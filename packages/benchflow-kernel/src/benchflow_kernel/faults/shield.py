"""Work that is finished although its caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result.

    Cancellation that arrives meanwhile is kept and raised once `work` has ended.
    `work` must be bounded by a deadline of its own.
    """
    # A TaskGroup would pass the cancellation on; this task's owner is this frame,
    # which does not return before it.
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
