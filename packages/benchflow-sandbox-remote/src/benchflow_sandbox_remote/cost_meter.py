"""What the sandboxes of a cloud cost, by their size and their time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from .terms import BoxSize, Prices


@dataclass(frozen=True, slots=True)
class _Running:
    rollout: str | None
    usd_per_second: float
    since: float


class CostMeter:
    """Counts the cost of each rollout. The time of this machine's clock counts, not the cloud's."""

    def __init__(self, prices: Prices | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._prices = prices
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._spent: dict[str | None, float] = {}

    @property
    def is_known(self) -> bool:
        """Whether there are prices."""
        return self._prices is not None

    def start(self, sandbox: str, rollout: str | None, size: BoxSize) -> None:
        """Count a sandbox from now on."""
        price = 0.0 if self._prices is None else self._prices.per_second(size)
        self._running[sandbox] = _Running(rollout, price, self._clock())

    def stop(self, sandbox: str) -> None:
        """Do not count a sandbox any more. Idempotent."""
        running = self._running.pop(sandbox, None)
        if running is not None:
            before = self._spent.get(running.rollout, 0.0)
            self._spent[running.rollout] = before + self._cost(running)

    def cost_usd(self, rollout: str) -> float:
        """Return what the sandboxes of a rollout have cost so far."""
        running = (each for each in self._running.values() if each.rollout == rollout)
        return self._spent.get(rollout, 0.0) + sum(map(self._cost, running))

    def _cost(self, running: _Running) -> float:
        return (self._clock() - running.since) * running.usd_per_second
