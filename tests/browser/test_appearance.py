"""Values stay distinct without colour, pages fit narrow windows, and nothing moves on request."""

import io
from collections.abc import Callable
from itertools import pairwise

import pytest
from PIL import Image
from playwright.sync_api import Page
from site_crawl import Crawl

NewPage = Callable[..., Page]
LEAST_STEP = 5.0
"""The least difference in lightness (CIE L*, 0 to 100) of two neighbouring values."""
WINDOWS = {
    "a window of 320 px": {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": False},
    "1280 px at 200 %": {"width": 640, "height": 400, "deviceScaleFactor": 2, "mobile": False},
}
WIDE = """() => {
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  const wide = (e) => e.getBoundingClientRect().right > root.clientWidth + 1
    && !e.parentElement.closest(".scroll, .tree-scroll");
  const found = [...document.querySelectorAll("body *")].filter(wide);
  return ["", ...found.slice(0, 5).map((e) => e.outerHTML.slice(0, 80))];
}"""


def lightness(pixel: tuple[int, ...]) -> float:
    """Return L* of an sRGB colour."""
    parts = [value / 255 for value in pixel[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    y = sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def shown_ramp(page: Page) -> list[tuple[int, ...]]:
    """Return the colours of the ramp's seven steps in a screenshot of the legend."""
    page.locator(".legend").scroll_into_view_if_needed()
    boxes = [swatch.bounding_box() for swatch in page.locator(".legend .swatch").all()]
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    colours: list[tuple[int, ...]] = []
    for box in boxes:
        assert box is not None
        centre = (int(box["x"] + box["width"] / 2), int(box["y"] + box["height"] / 2))
        pixel = image.getpixel(centre)
        assert isinstance(pixel, tuple)
        colours.append(pixel)
    assert len(colours) == 7
    return colours


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", ["none", "achromatopsia", "deuteranopia"])
def test_neighbouring_values_differ_in_lightness(
    theme: str, vision: str, new_page: NewPage, demo: str
) -> None:
    page = new_page(color_scheme=theme, reduced_motion="reduce")
    client = page.context.new_cdp_session(page)
    client.send("Emulation.setEmulatedVisionDeficiency", {"type": vision})
    page.goto(f"/r/{demo}")
    colours = shown_ramp(page)
    if vision == "achromatopsia":
        assert all(max(colour) - min(colour) <= 2 for colour in colours)
    steps = [lightness(colour) for colour in colours]
    differences = [after - before for before, after in pairwise(steps)]
    is_rising = differences[0] > 0
    assert all((step > 0) == is_rising and abs(step) >= LEAST_STEP for step in differences), steps


def test_no_page_scrolls_sideways(new_page: NewPage, pages: Crawl) -> None:
    page = new_page()
    client = page.context.new_cdp_session(page)
    too_wide: dict[str, list[str]] = {}
    for path in pages.pages:
        page.goto(path)
        for window, metrics in WINDOWS.items():
            client.send("Emulation.setDeviceMetricsOverride", metrics)
            assert page.evaluate("innerWidth") == metrics["width"]
            if elements := page.evaluate(WIDE):
                too_wide[f"{path} in {window}"] = elements
    assert too_wide == {}


def test_nothing_moves_if_the_reader_asks_for_reduced_motion(page: Page, demo: str) -> None:
    script = """() => [...document.querySelectorAll("*")].filter((element) => {
      const { transitionDuration, transitionProperty, animationName } = getComputedStyle(element);
      const moves = transitionProperty !== "none" && !/^(0s(, )?)+$/.test(transitionDuration);
      return moves || animationName !== "none";
    }).length"""
    for path in ("/runs", f"/r/{demo}", "/monitor"):
        page.emulate_media(reduced_motion="no-preference")
        page.goto(path)
        assert page.evaluate(script) > 0, path
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate(script) == 0, path
