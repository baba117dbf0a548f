"""A source that is read in a thread of its own, so that each wait for it has a limit."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchflow_contracts import BenchFlowError

_Value = TypeVar("_Value")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading(Generic[_Value]):
    """The last answer of a source."""

    value: _Value | None
    """`None` if the source failed, or has not answered yet."""
    problem: str
    """Why the source failed, else empty."""
    at: float | None
    """When the source answered, in seconds since the epoch; `None` before its first answer."""
    waits_since: float | None
    """When the read began that has no answer yet; `None` if no read is under way."""


class TimedSource(Generic[_Value]):
    """Reads a source at most once at a time. A read that hangs costs one thread, and no request."""

    def __init__(self, name: str, read: Callable[[], _Value], *, fresh_sec: float = 2.0) -> None:
        """Prepare. An answer that is younger than `fresh_sec` is not read again."""
        self.name = name
        self._read, self._fresh_sec = read, fresh_sec
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._began: float | None = None
        self._last: Reading[_Value] = Reading(None, "", None, None)

    def begin(self) -> None:
        """Begin a read, unless one is under way or the last answer is fresh."""
        with self._lock:
            is_fresh = self._last.at is not None and time.time() - self._last.at < self._fresh_sec
            if self._began is not None or is_fresh:
                return
            self._began = time.time()
            self._done.clear()
        threading.Thread(target=self._run, name=f"fleet-{self.name}", daemon=True).start()

    def reading(self, wait_sec: float) -> Reading[_Value]:
        """Return the last answer, after a wait of at most `wait_sec` for one that is under way."""
        if self._began is not None and wait_sec > 0:
            self._done.wait(wait_sec)
        with self._lock:
            last = self._last
            return Reading(last.value, last.problem, last.at, self._began)

    def _run(self) -> None:
        value, problem = None, ""
        try:
            value = self._read()
        except (BenchFlowError, OSError) as error:
            hint = getattr(error, "hint", None)
            problem = f"{error}. Hint: {hint}." if hint else str(error)
        except Exception as error:
            # A provider of another package may raise anything.
            _logger.warning("cannot read %s", self.name, exc_info=True)
            problem = f"{type(error).__name__}: {error}"
        with self._lock:
            self._last = Reading(value, problem, time.time(), None)
            self._began = None
        self._done.set()
