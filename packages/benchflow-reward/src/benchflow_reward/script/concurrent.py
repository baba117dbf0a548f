"""Two things at once, whose errors are those of one."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


async def run_both(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
    """Return what both give. Both have ended when the error of one is raised, the first's first."""
    async with asyncio.TaskGroup() as group:
        one, other = group.create_task(_outcome(first)), group.create_task(_outcome(second))
    left, right = one.result(), other.result()
    if isinstance(left, _Failure):
        raise left.error
    if isinstance(right, _Failure):
        raise right.error
    return left, right


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


async def _outcome(work: Coroutine[Any, Any, First]) -> First | _Failure:
    # A thread that reads files is not ended by a cancellation, and they must not go before it.
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - raised again by the caller, alone
        return _Failure(error)
