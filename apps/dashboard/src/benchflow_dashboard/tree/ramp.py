"""The colours of values: seven steps of cividis, and blue and orange for advantages.

The lightness of the ramp is monotone, so its steps differ in greyscale and for colour-blind eyes.
Low values are dark in the light theme, and light in the dark theme.

Source of the colours: Nunez, Anderton and Renslow (2018), "Optimizing colormaps with consideration
for color vision deficiency", sampled at about k/6.
"""

from typing import Final, Literal

Theme = Literal["light", "dark"]

STEPS: Final = 7
CIVIDIS: Final = ("#00224e", "#31446b", "#575d6d", "#7d7c78", "#a69d75", "#d3c164", "#fee838")
_BLACK, _WHITE = "#000000", "#ffffff"
_EQUAL_TO_BLACK_AND_WHITE: Final = 0.179
"""The luminance at which black and white have the same contrast."""


def ramp_of(theme: Theme) -> tuple[str, ...]:
    """Return the colours from the lowest to the highest value."""
    return CIVIDIS if theme == "light" else CIVIDIS[::-1]


def step_of(value: float, low: float, high: float) -> int:
    """Return the step of `value` on the ramp from `low` to `high`: 0 to 6.

    Values outside the range have the first or the last step. If the range is empty, every value has
    the middle step.
    """
    if not low < high:
        return STEPS // 2
    share = (value - low) / (high - low)
    # A share that is not a number has the first step.
    return min(int(share * STEPS), STEPS - 1) if share > 0 else 0


def text_on(colour: str) -> str:
    """Return black or white, whichever has more contrast on `colour`."""
    return _BLACK if luminance(colour) > _EQUAL_TO_BLACK_AND_WHITE else _WHITE


def luminance(colour: str) -> float:
    """Return the relative luminance of `#rrggbb`, as WCAG 2.2 defines it."""
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours: 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
