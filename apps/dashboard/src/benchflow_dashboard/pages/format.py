"""Numbers and times as text. Unknown is a dash, never 0."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from benchflow_dashboard.page_time import page_time

UNKNOWN: Final = "–"  # noqa: RUF001 - a dash, not a minus
_BARS: Final = "▁▂▃▄▅▆▇█"
_RAMP_STEPS: Final = 7
GLYPHS: Final = {
    "completed": "✓",
    "running": "◔",
    "failed": "✕",
    "ungraded": "✕",
    "unfinished": "✕",
    "paused": "‖",
    "cancelled": "◌",
    "cut short": "✕",
    "interrupted": "◌",
    "killed": "✕",
}


def reward(value: float | None) -> str:
    """Return a reward with two decimals: enough to compare rows."""
    return UNKNOWN if value is None else f"{value:.2f}"


def mean(value: float | None, stderr: float | None) -> str:
    """Return a mean with its standard error."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if stderr is None else f"{value:.3f} ±{stderr:.3f}"


def money(value: float | None) -> str:
    """Return dollars, with more digits of small amounts."""
    if value is None:
        return UNKNOWN
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def duration(seconds: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if seconds is None:
        return UNKNOWN
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return (
                f"{seconds / size:.1f} {unit}"
                if seconds < 10 * size
                else f"{seconds / size:.0f} {unit}"
            )
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"
    return f"{max(seconds, 0):.0f} s"


def ago(moment: float | None, now: float | None = None) -> str:
    """Return how long ago a moment was."""
    if not moment:
        return UNKNOWN
    return duration(float(int(max((page_time() if now is None else now) - moment, 0.0))))


def utc(moment: float | None) -> str:
    """Return a moment as ISO 8601 in UTC, as `<time>` needs it; empty if it is not one."""
    try:
        return datetime.fromtimestamp(moment or 0.0, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def metric(value: float, name: str) -> str:
    """Return a mean of monitor mode in its unit. `name` is the metric, as rules name it."""
    if name == "latency":
        return f"{value:.1f} s" if 1 <= value < 10 else duration(value)
    if name == "cost":
        return money(value)
    if name in {"error_rate", "tool_error_rate"}:
        return f"{100 * value:.3g} %"
    return f"{value:.3g}"


def count(number: int | None) -> str:
    """Return a count with groups of three digits."""
    return UNKNOWN if number is None else f"{number:,}".replace(",", "\u2009")


def ramp(value: float | None, low: float = 0.0, high: float = 1.0) -> int:
    """Return the step of the ramp for a value between `low` and `high`."""
    if value is None or not high > low:
        return 0
    return min(max(int((value - low) / (high - low) * _RAMP_STEPS), 0), _RAMP_STEPS - 1)


def share(value: float | None, width: int) -> int:
    """Return the pixels of a bar of `width` for a reward between 0 and 1."""
    return 0 if value is None else round(min(max(value, 0.0), 1.0) * width)


def signed3(value: float | None) -> str:
    """Return a difference with its sign and three decimals."""
    return UNKNOWN if value is None else f"{value + 0.0:+.3f}"


def place(value: float, scale: float, width: int) -> float:
    """Return the pixel of a value between -`scale` and `scale` on an axis of `width`."""
    return round((min(max(value / scale, -1.0), 1.0) + 1.0) / 2 * width, 1)


def bars(spread: Mapping[str, Any] | None) -> str:
    """Return the returns of the leaves in bins, as bars of text; empty for one leaf."""
    bins = _bins(spread)
    if sum(bins) < 2:
        return ""
    most = max(bins)
    return "".join(_BARS[0 if not n else 1 + round((n / most) * 6)] for n in bins)


def spread_text(spread: Mapping[str, Any] | None) -> str:
    """Return the same in words, for a screen reader."""
    bins = _bins(spread)
    if spread is None or sum(bins) < 2:
        return ""
    return f"{sum(bins)} scored leaves from {spread['low']:.2f} to {spread['high']:.2f}"


def _bins(spread: Mapping[str, Any] | None) -> list[int]:
    return [] if spread is None else list(spread["bins"])


def glyph(status: str) -> str:
    """Return the sign of a status. The word stands beside it."""
    return GLYPHS.get(status, "·")


def segment_url(text: str) -> str:
    """Quote any text as one segment of a path, for a handler that calls `unquote` once more.

    A server decodes a path before it splits the path, so an id with a slash is quoted twice.
    """
    return quote(quote(text, safe=""), safe="")


FILTERS: Final[dict[str, Any]] = {
    each.__name__: each
    for each in (
        reward,
        mean,
        money,
        duration,
        ago,
        utc,
        metric,
        count,
        ramp,
        share,
        signed3,
        place,
        bars,
        spread_text,
        glyph,
        segment_url,
    )
}
"""What templates use, by name."""
