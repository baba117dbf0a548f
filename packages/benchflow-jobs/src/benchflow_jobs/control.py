"""Orders of people to a job that runs."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from .driver import JobDriver

_HURRY = "press Ctrl-C again to end them now"


@dataclass(slots=True)
class JobControl:
    """Gives orders to the driver of a job. Call it on the job's event loop."""

    driver: JobDriver
    interrupted: str | None = None
    """The signal or the person that ended the job before its end."""

    def drain(self, by: str) -> None:
        """Start nothing more. The job ends when what runs has ended."""
        self.interrupted = by
        self.driver.tell(lambda scheduler, _now: scheduler.drain(f"interrupted by {by}"))

    def stop(self, by: str) -> None:
        """End what runs now, and then the job."""
        self.interrupted = by
        self.driver.tell(lambda scheduler, _now: scheduler.stop(f"interrupted by {by}"))


@contextmanager
def signals_to(control: JobControl, say: Callable[[str], None]) -> Generator[None]:
    """Let signals give orders inside the block.

    The first SIGINT drains the job. The second SIGINT, SIGTERM and SIGHUP end what runs. One more
    signal cancels the job's task. `say` gets a sentence for people.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    count = 0

    def receive(number: signal.Signals) -> None:
        nonlocal count
        count += 2 if number != signal.SIGINT and count < 2 else 1
        running = control.driver.scheduler.running
        if count == 1:
            say(f"no further rollout starts; {running} are running; {_HURRY}")
            control.drain(number.name)
        elif count == 2:
            say(f"ending {running} rollouts")
            control.stop(number.name)
        elif task is not None:
            task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # `nohup` ignores SIGHUP.
    earlier = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in earlier:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
