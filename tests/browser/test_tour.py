"""The pages of the tour in the documentation. `nox -s screenshots` writes their pictures."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

NewPage = Callable[..., Page]
DOCS = Path(__file__).parents[2] / "docs"
PICTURES = DOCS / "assets" / "tour"
STOPS = {
    "runs": "/runs",
    "rollout": "/r/{demo}?sel=n8",
    "question": "/r/{demo}?sel=n3",
    "large-tree": "/r/large?sel=n7",
    "diff": "/r/{demo}/diff?a=n7&b=n8",
    "search": "/search?q=review",
    "failures": "/failures",
    "rewards": "/rewards",
    "export": "/export",
    "monitor": "/monitor",
}
"""The stops of the tour, in order, and their pages."""
MOST_BYTES = 1_500_000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_stop_of_the_tour_can_be_pictured(
    theme: str, new_page: NewPage, demo: str, request: pytest.FixtureRequest
) -> None:
    window = {"width": 1200, "height": 640}
    page = new_page(color_scheme=theme, viewport=window, reduced_motion="reduce")
    target: Path | None = request.config.getoption("--pictures", None)
    for name, path in STOPS.items():
        page.goto(path.format(demo=demo))
        expect(page.locator("h1")).to_be_visible()
        picture = Image.open(io.BytesIO(page.screenshot()))
        assert picture.size == (1200, 640)
        colours = picture.convert("RGB").getcolors(1_000_000)
        assert colours is not None
        assert len(colours) > 20, f"{path} is blank"
        if target is not None:
            target.mkdir(parents=True, exist_ok=True)
            # Another method changes the colours of the ramp.
            method = Image.Quantize.MAXCOVERAGE
            few = picture.convert("RGB").quantize(256, method, kmeans=2, dither=Image.Dither.NONE)
            few.save(target / f"{name}-{theme}.png", optimize=True)


def test_the_tour_in_the_documentation_shows_each_picture_once() -> None:
    text = (DOCS / "guides" / "dashboard-tour.md").read_text()
    shown = re.findall(r"\]\(\.\./assets/tour/([\w-]+\.png)#only-(light|dark)\)", text)
    expected = [(f"{name}-{theme}.png", theme) for name in STOPS for theme in ("light", "dark")]
    assert shown == expected
    files = sorted(PICTURES.glob("*"))
    assert [path.name for path in files] == sorted(name for name, _ in expected)
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
