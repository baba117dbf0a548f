"""The engines that wait for boxes to bring back: as many as were needed at once."""

import os
import shutil

from .engine import Engine
from .waiting import Waiting
from .workspace import Workspace

_MOST = 2 * (os.cpu_count() or 1)


class Standby:
    """Waiting engines of one launcher."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._engine: Engine | None = None
        self._ready: list[Waiting] = []
        self._wanted = 0
        self._started = 0

    def expect(self, engine: Engine, at_once: int = 1) -> None:
        """Note that so many boxes will be brought back at once by `engine`."""
        self._engine = engine
        self._wanted = max(self._wanted, min(at_once, _MOST))

    def take(self, engine: Engine, busy: int) -> Waiting:
        """Return the engine that has waited longest, or a new one; `busy` are at work.

        Raises:
            OSError: None starts.
        """
        self.expect(engine, busy + 1)
        for waiting in self._ready:
            if waiting.engine == engine:
                self._ready.remove(waiting)
                return waiting
        return self._start(engine)

    @property
    def short(self) -> bool:
        """Whether one more should wait."""
        return len(self._ready) < self._wanted

    def start(self) -> None:
        """Start one more; no try is made after one that failed until one is taken."""
        assert self._engine is not None
        try:
            self._ready.append(self._start(self._engine))
        except OSError:
            self._wanted = 0

    def _start(self, engine: Engine) -> Waiting:
        self._started += 1
        directory = f"{self._space.root}/standby/{self._started}"
        return Waiting(engine, self._space.root, directory)

    def reaped(self, pid: int) -> None:
        """Forget the engine `pid` if it has died while it waited."""
        for waiting in list(self._ready):
            if waiting.pid == pid:
                self._ready.remove(waiting)
                waiting.close()
                shutil.rmtree(waiting.directory, ignore_errors=True)
                self._wanted = 0
