"""Two things at once, whose errors are those of one."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


async def both(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
    """Return what both give. When one fails, the other is cancelled and that error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            one, other = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return one.result(), other.result()
