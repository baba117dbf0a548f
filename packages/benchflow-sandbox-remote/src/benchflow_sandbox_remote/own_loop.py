"""Run a coroutine in an event loop of its own thread."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from benchflow_sandbox_core.shield import finish

_Running = tuple[asyncio.AbstractEventLoop, "asyncio.Task[None]"]
_AGAIN = 0.2


async def in_own_loop(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Await `make()` in another thread, so that its computing does not stop this loop.

    A cancellation cancels the coroutine, and waits until it has ended.
    """
    running = list[_Running]()
    is_cancelled = False

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(make())
        running.append((asyncio.get_running_loop(), task))
        if is_cancelled:
            task.cancel()
        await task

    # The threads of `asyncio.to_thread` are few, and short work waits for them.
    executor = ThreadPoolExecutor(1, "benchflow-build")
    thread = asyncio.get_running_loop().run_in_executor(executor, asyncio.run, main())
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        is_cancelled = True
        await finish(_end(thread, running))
        raise
    finally:
        executor.shutdown(wait=False)


async def _end(thread: "asyncio.Future[None]", running: list[_Running]) -> None:
    while not thread.done():
        for loop, task in running:
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        # A request of an SDK that was just answered can swallow a cancellation.
        await asyncio.wait([thread], timeout=_AGAIN)
