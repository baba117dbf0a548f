"""Run two coroutines at once, and raise the error of one."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


async def run_both(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
    """Return both results. After both have ended, raise the error of the first, else the second."""
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
    # A cancellation does not end a thread that reads files, and the files must outlive the thread.
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - raised again by the caller, alone
        return _Failure(error)
