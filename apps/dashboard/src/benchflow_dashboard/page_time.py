"""The time that a page takes as now: the clock, or the time of the data of a bundle."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_fixed: ContextVar[float | None] = ContextVar("benchflow_page_time", default=None)


def page_time() -> float:
    """Return now, in seconds since the epoch, for texts such as `3 min ago`."""
    fixed = _fixed.get()
    return time.time() if fixed is None else fixed


@contextmanager
def at_time(moment: float) -> Generator[None]:
    """Use `moment` as now inside this block, also in tasks and threads that it starts."""
    token = _fixed.set(moment)
    try:
        yield
    finally:
        _fixed.reset(token)
