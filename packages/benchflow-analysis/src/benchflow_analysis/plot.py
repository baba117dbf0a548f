"""The means of an analysis and their intervals, as an SVG or PNG file."""

from importlib import import_module
from pathlib import Path
from typing import Any

from benchflow_contracts import StoreError, UsageError

from .report import AnalysisReport
from .statistics import Interval

_WIDTH = 480
_BAR = 26
_LONGEST_TITLE = 60


def write_plot(report: AnalysisReport, path: Path) -> None:
    """Write the means of the variants, and their deltas, to a file that ends in .svg or .png.

    Raises:
        UsageError: The suffix is another one, no trial is scored, or the extra `plots` is not
            installed.
        StoreError: The file cannot be written.
    """
    if path.suffix not in {".svg", ".png"}:
        raise UsageError(f"{str(path)!r} is not a plot file", hint="end its name in .svg or .png")
    if all(each.mean is None for each in report.variants):
        raise UsageError("a plot needs a scored trial", hint="wait until a rollout has a score")
    try:
        vl_convert = import_module("vl_convert")
    except ImportError as error:
        raise UsageError(
            "plots need the package vl-convert-python",
            hint="install it: pip install 'benchflow-analysis[plots]'",
        ) from error
    spec = plot_spec(report)
    if path.suffix == ".svg":
        data = vl_convert.vegalite_to_svg(spec).encode()
    else:
        data = vl_convert.vegalite_to_png(spec, scale=2)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error


def plot_spec(report: AnalysisReport) -> dict[str, Any]:
    """Return the Vega-Lite specification of the plot."""
    level = f"{report.options.confidence * 100:g} %"
    means = [
        _point(each.name, each.mean.mean, each.mean.interval)
        for each in report.variants
        if each.mean is not None
    ]
    deltas = [
        _point(each.variant, each.paired.delta, each.paired.interval)
        for each in report.comparisons
        if each.paired is not None
    ]
    panels = [_panel(means, f"Mean reward, {level} interval", rule=None)]
    if deltas:
        against = report.comparisons[0].baseline
        panels.append(
            _panel(
                deltas,
                f"Delta against {_label(against)[:_LONGEST_TITLE]}, {level} interval",
                rule=0.0,
            )
        )
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "config": {"view": {"stroke": None}},
        "vconcat": panels,
    }


def _point(name: str, value: float, interval: Interval | None) -> dict[str, Any]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {"variant": _label(name), "value": value, "low": low, "high": high}


def _label(name: str) -> str:
    """Return a name for the plot. Vega evaluates a title, and XML lacks some characters."""
    return "".join(char if char.isprintable() and char not in '\\"' else "?" for char in name)


def _panel(points: list[dict[str, Any]], title: str, *, rule: float | None) -> dict[str, Any]:
    row = {"field": "variant", "type": "nominal", "sort": None, "title": None}
    scale = {"zero": False, "nice": True}
    axis = {"title": title, "type": "quantitative", "scale": scale}
    layers: list[dict[str, Any]] = [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 2, "color": "#4c78a8"},
            "encoding": {"y": row, "x": {"field": "low", **axis}, "x2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "color": "#4c78a8"},
            "encoding": {"y": row, "x": {"field": "value", **axis}},
        },
    ]
    if rule is not None:
        mark = {"type": "rule", "strokeDash": [4, 4], "color": "#888888"}
        layers.append({"mark": mark, "encoding": {"x": {"datum": rule, **axis}}})
    return {
        "data": {"values": points},
        "width": _WIDTH,
        "height": {"step": _BAR},
        "layer": layers,
    }
