"""The assembler as a process of its own: folding would take the interpreter from the requests."""

import asyncio
import gc
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .assembler import Assembler
from .config import MonitorConfig
from .scoring import OnlineScorer

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)
_RESTART_SEC: Final = 1.0


class AssemblerProcess:
    """Runs an `Assembler` in a child process, which ends when this process ends.

    What the child stores is one transaction each, so it may be killed at any moment.
    """

    def __init__(self, location: Path | str, config: MonitorConfig) -> None:
        self._orders = {
            "file" if isinstance(location, Path) else "url": str(location),
            "config": config.model_dump(mode="json"),
            "path": sys.path,
        }
        self.on_change: Callable[[], None] = lambda: None
        """Called after each pass that stored a rollout."""

    async def run(self) -> None:
        """Assemble until this task is cancelled. A child that ends is started again."""
        while True:
            try:
                _logger.warning("the assembler ended with status %s", await self._run_child())
            except OSError as error:
                _logger.warning("the assembler cannot be started: %s", error)
            await asyncio.sleep(_RESTART_SEC)

    def close(self) -> None:
        """Do nothing: the child ends with `run`."""

    async def _run_child(self) -> int:
        """Start a child, report what it stores, and return its status when it ended."""
        # A session of its own: Ctrl-C of a terminal is for this process, which ends the child.
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", __name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        if child.stdin is None or child.stdout is None:
            raise OSError("no pipes")
        try:
            child.stdin.write(json.dumps(self._orders).encode() + b"\n")
            async for _ in child.stdout:
                self.on_change()
        finally:
            if child.returncode is None:
                child.kill()
            status = await child.wait()
        return status


def _end_with_parent() -> None:
    """End this process when its standard input ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def _report() -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()


def _assemble(orders: dict[str, Any]) -> None:
    sys.path[:] = orders["path"]
    config = MonitorConfig.model_validate(orders["config"])
    location = Path(orders["file"]) if "file" in orders else orders["url"]
    assembler = Assembler(location, config, OnlineScorer(config))
    assembler.on_change = _report
    # The collector took a quarter of the time of a fold. It cannot be rare in its last
    # generation: the trees have cycles, and memory grew for minutes until it was free again.
    gc.freeze()
    gc.set_threshold(20_000, 10, 5)
    asyncio.run(assembler.run())


if __name__ == "__main__":
    _job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _assemble(_job)
