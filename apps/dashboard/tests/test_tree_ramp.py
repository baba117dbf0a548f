"""The ramp of values: monotone in lightness, also for colour-blind eyes, and text is readable."""

import re
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise

import pytest
from benchflow_dashboard.tree import ramp
from benchflow_dashboard.tree.ramp import Theme

THEMES: tuple[Theme, ...] = ("light", "dark")
# Machado, Oliveira and Fernandes (2009), deuteranopia, severity 1.0, on linear RGB.
DEUTERANOPIA = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)
# What the eye still tells apart in marks of 10 pixels, next to each other.
SMALLEST_DIFFERENCE = 8.0


def channels(colour: str) -> list[float]:
    # The luminance of a pure channel is its weight times the linear channel.
    weights = (0.2126, 0.7152, 0.0722)
    parts = (f"#{colour[1:3]}0000", f"#00{colour[3:5]}00", f"#0000{colour[5:7]}")
    return [ramp.luminance(part) / weight for part, weight in zip(parts, weights, strict=True)]


def lightness(luminance: float) -> float:
    """Return L* of CIE Lab."""
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def in_greyscale(colour: str) -> float:
    return lightness(ramp.luminance(colour))


def with_deuteranopia(colour: str) -> float:
    rgb = channels(colour)
    seen = [sum(w * c for w, c in zip(row, rgb, strict=True)) for row in DEUTERANOPIA]
    clipped = [min(max(c, 0), 1) for c in seen]
    return lightness(0.2126 * clipped[0] + 0.7152 * clipped[1] + 0.0722 * clipped[2])


@pytest.mark.parametrize("seen_as", [in_greyscale, with_deuteranopia])
@pytest.mark.parametrize("theme", THEMES)
def test_neighbouring_steps_differ_in_lightness_in_one_direction(
    theme: Theme, seen_as: Callable[[str], float]
) -> None:
    steps = [seen_as(colour) for colour in ramp.ramp_of(theme)]
    differences = [after - before for before, after in pairwise(steps)]
    direction = 1 if theme == "light" else -1
    assert all(direction * each >= SMALLEST_DIFFERENCE for each in differences)


@pytest.mark.parametrize("colour", ramp.CIVIDIS)
def test_text_on_each_step_has_a_contrast_of_4_5(colour: str) -> None:
    assert ramp.contrast(colour, ramp.text_on(colour)) >= 4.5


def test_the_contrast_is_the_one_of_wcag() -> None:
    assert ramp.contrast("#000000", "#ffffff") == pytest.approx(21)
    # The example of WebAIM: the lightest grey on white that passes AA.
    assert ramp.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


def tokens(theme: Theme) -> dict[str, str]:
    """Return the tokens of a theme, from each block that sets them."""
    css = (files("benchflow_dashboard") / "static" / "tokens.css").read_text()
    rules = re.findall(r"(:root[^{]*)\{([^{}]*)\}", css)
    named = [body for selector, body in rules if ("dark" in selector) == (theme == "dark")]
    if theme == "dark":
        named += [body for selector, body in rules if 'not([data-theme="light"])' in selector]
    else:
        named = [body for selector, body in rules if selector.strip() == ":root"]
    return dict(re.findall(r"(--[\w-]+): ([^;]+);", "".join(named)))


@pytest.mark.parametrize("theme", THEMES)
def test_the_style_sheet_has_the_ramp_and_readable_text(theme: Theme) -> None:
    found = tokens(theme)
    for step, colour in enumerate(ramp.ramp_of(theme)):
        assert found[f"--bf-ramp-{step}"] == colour
        assert found[f"--bf-ramp-ink-{step}"] == ramp.text_on(colour)


@pytest.mark.parametrize("theme", THEMES)
def test_marks_and_labels_of_the_tree_stand_out_from_the_ground(theme: Theme) -> None:
    found = tokens(theme)
    ground = found["--bf-ground"]
    # A glyph has an outline in --bf-quiet, because one end of the ramp is close to the ground.
    assert ramp.contrast(found["--bf-quiet"], ground) >= 4.5
    for token in ("ink", "better", "worse", "failure", "accent"):
        assert ramp.contrast(found[f"--bf-{token}"], ground) >= 4.5, token


def test_values_fall_on_the_seven_steps() -> None:
    assert [ramp.step_of(value / 7 + 0.001, 0, 1) for value in range(7)] == [0, 1, 2, 3, 4, 5, 6]
    assert (ramp.step_of(1, 0, 1), ramp.step_of(9, 0, 1), ramp.step_of(-9, 0, 1)) == (6, 6, 0)
    assert ramp.step_of(5, 5, 5) == 3
    assert ramp.step_of(float("nan"), 0, 1) == 0
