"""One line of a benchmark's output, the same for all of them."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles


def emit(bench: str, samples: Sequence[float], *, unit: str = "ms", **facts: object) -> float:
    """Print one JSON line about `samples` and return their median.

    `facts` carry what the number is held against: `limit` (what it must reach, with the ratio of
    the median to it), `peer` and `ratio` (what it is compared with, measured in the same run).
    """
    middle = median(samples)
    limit = facts.get("limit")
    if isinstance(limit, int | float) and limit:
        facts["ratio_to_limit"] = round(middle / limit, 3)
    line = {
        "bench": bench,
        "unit": unit,
        "n": len(samples),
        "median": round(middle, 4),
        "p95": round(quantiles(samples, n=20)[-1] if len(samples) > 1 else middle, 4),
        "min": round(min(samples), 4),
        **facts,
        "machine": machine(),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    return middle


def machine() -> dict[str, object]:
    """Return what a reader needs to place a number."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
