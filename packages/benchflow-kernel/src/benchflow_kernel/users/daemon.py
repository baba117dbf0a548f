"""Blocking calls that do not delay a cancelled rollout."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def call_in_daemon(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread and return its result.

    On cancellation the thread continues and its result is dropped: reading a terminal
    cannot be interrupted, and must not delay the end of the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to the awaiting side
            failure = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=run, name="benchflow-user", daemon=True).start()
    return await future
