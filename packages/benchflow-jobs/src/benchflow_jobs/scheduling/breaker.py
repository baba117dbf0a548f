"""A circuit breaker: it opens when one error repeats without a success between."""

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """Counts how often one and the same error came, one time after the other."""

    after: int
    """The count at which it opens."""
    _fingerprint: str | None = None
    _count: int = 0

    def count(self, fingerprint: str) -> bool:
        """Count an error; return whether the breaker is open now."""
        self._count = self._count + 1 if fingerprint == self._fingerprint else 1
        self._fingerprint = fingerprint
        return self._count >= self.after

    def reset(self) -> None:
        """Close it: something succeeded, or people say so."""
        self._fingerprint, self._count = None, 0
