"""The `timing` of a trainer row, in the shape of Verifiers' `RolloutTiming`."""

from typing import Any, NamedTuple


class Span(NamedTuple):
    """Seconds since the epoch. A span that ends at 0 was not measured, and its duration is 0."""

    start: float = 0.0
    end: float = 0.0

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start if self.end > 0 else 0.0


UNMEASURED = Span()


def verifiers_timing(
    *,
    start_time: float = 0.0,
    setup: Span = UNMEASURED,
    generation: Span = UNMEASURED,
    scoring: Span = UNMEASURED,
) -> dict[str, Any]:
    """Return every key of the shape, so that the rows of a file have one schema.

    As in Verifiers, `generation` includes `setup`. An ACP agent does not separate the time of
    its model from the time of its tools: `model` and `env` have no spans, and their time counts
    as `overhead`.
    """
    total = scoring.end - generation.start if scoring.end > 0 else 0.0
    return {
        "start_time": start_time,
        "setup": _span(setup),
        "generation": _span(generation),
        "scoring": _span(scoring),
        "model": {"spans": [], "duration": 0.0},
        "env": {"spans": [], "duration": 0.0},
        "total": total,
        "overhead": total - setup.duration - scoring.duration,
    }


def _span(span: Span) -> dict[str, float]:
    return {"start": span.start, "end": span.end, "duration": span.duration}
