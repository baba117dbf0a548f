"""Reports of the index that are kept until the index changes."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

import apsw

from .database import IndexReaders, IndexSession

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Report(Generic[_Result]):
    """What was counted, and the seconds that it took."""

    result: _Result
    seconds: float


class ReportCache:
    """The newest reports, each of one state of the index. Safe to use from several threads."""

    def __init__(self, path: Path, readers: IndexReaders, entries: int = 64) -> None:
        """Create an empty cache of the index at `path`, with room for `entries` reports."""
        self._path, self._readers, self._entries = path, readers, entries
        self._making = threading.Lock()
        self._watch: apsw.Connection | None = None
        self._kept: OrderedDict[Hashable, tuple[int, Report[object]]] = OrderedDict()

    def read(self, key: Hashable, make: Callable[[IndexSession], _Result]) -> Report[_Result]:
        """Return the report `key`. `make` counts it again after any change of the index."""
        # One report at a time: readers of one page wait for it, and do not count it again. The
        # version is read before the rows, so a later change makes the report a stale one.
        with self._making:
            version = self._version()
            known = self._kept.get(key)
            if known is None or known[0] != version:
                known = (version, cast("Report[object]", self._make(make)))
            self._kept[key] = known
            self._kept.move_to_end(key)
            while len(self._kept) > self._entries:
                self._kept.popitem(last=False)
        return cast("Report[_Result]", known[1])

    def _make(self, make: Callable[[IndexSession], _Result]) -> Report[_Result]:
        began = time.perf_counter()
        with self._readers.session() as session:
            result = make(session)
        return Report(result, time.perf_counter() - began)

    def close(self) -> None:
        """Close the connection, and drop all reports."""
        with self._making, suppress(apsw.Error):
            self._kept.clear()
            if self._watch is not None:
                self._watch.close(True)
                self._watch = None

    def _version(self) -> int:
        """Return a number that changes with each commit; it holds for one connection only."""
        if self._watch is None:
            self._watch = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            self._watch.set_busy_timeout(5000)
        return int(IndexSession(self._watch).rows("PRAGMA data_version")[0][0])
