"""The pages of the tour in the documentation. `nox -s screenshots` writes their pictures."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from dashboard_process import (
    WAIT_SEC,
    DashboardProcess,
    own_directories,
    production_records,
)
from fault_job import write_tasks
from made_jobs import Spent, write_job
from PIL import Image
from playwright.sync_api import Page, expect

BENCH = Path(sys.executable).with_name("bench")
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
    "compare": "/jobs/prompts/compare",
    "cost": "/cost?job=prompts",
    "evidence": "/r/{demo}?sel=n9&tab=evidence",
    "export": "/export",
    "fleet": "/fleet",
    "monitor": "/monitor",
    "alerts": "/alerts",
}
"""The stops of the tour, in order, and their pages."""
OWN_SANDBOXES = """
document.querySelector("ul.counters").remove();
for (const row of document.querySelectorAll("tr[id^=sandbox]"))
  if (!row.textContent.includes("night")) row.remove();
"""
"""Other programs of the machine may have sandboxes, too. The picture has those of the job."""
MOST_BYTES = 1_500_000
SHORT = {
    "archive-newsletters": [1.0, 1.0, 0.5],
    "book-the-review-room": [0.0, 1.0, 0.0],
    "event-from-mail": [0.5, 0.5, None],
    "move-the-conflict": [1.0, 0.0, 0.0],
    "reply-with-order-number": [1.0, 1.0, 1.0],
}
WITH_EXAMPLES = {
    **SHORT,
    "book-the-review-room": [1.0, 1.0, 0.5],
    "event-from-mail": [1.0, 1.0, 0.5],
    "move-the-conflict": [0.0, 1.0, 1.0],
}
"""Made rewards of two prompts. Rewards of real models would change from picture to picture."""


@pytest.fixture(scope="module")
def toured(dashboard: DashboardProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Add a job with two variants, and one that runs in two sandboxes while two slots wait."""
    spent = {"short": Spent(2_400, 310, 0.011), "with-examples": Spent(5_900, 290, 0.021)}
    made = {"short": SHORT, "with-examples": WITH_EXAMPLES}
    with ThreadPoolExecutor(1) as thread:  # The loop of Playwright runs in this one.
        write = partial(write_job, dashboard.jobs, "prompts", made, ended=time.time() - 90_000)
        thread.submit(write, baseline="short", spent=spent).result()
    newer = production_records("talk-3", fails=True)
    dashboard.post_records([each | {"resource": {"version": "1.9"}} for each in newer])
    home = tmp_path_factory.mktemp("sleepers")
    write_tasks(home, "sleep 3600\n")
    words = ("--tasks-dir", home / "tasks", "--jobs-dir", dashboard.jobs, "--job-name", "night")
    amount = ("--agent", "oracle", "--repeats", "2", "--concurrency", "2")
    runner = subprocess.Popen(
        [BENCH, "eval", "create", *words, *amount],
        env=os.environ | own_directories(dashboard.home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        dashboard.wait_for("/runs", lambda text: "prompts-029" in text)
        dashboard.wait_for("/fleet", lambda text: "2 running" in text)
        dashboard.wait_for("/alerts", lambda text: "1.9" in text)
        yield
    finally:
        runner.send_signal(signal.SIGTERM)
        runner.wait(timeout=WAIT_SEC)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_stop_of_the_tour_can_be_pictured(
    theme: str, new_page: NewPage, demo: str, toured: None, request: pytest.FixtureRequest
) -> None:
    window = {"width": 1200, "height": 640}
    page = new_page(color_scheme=theme, viewport=window, reduced_motion="reduce")
    target: Path | None = request.config.getoption("--pictures", None)
    for name, path in STOPS.items():
        page.goto(path.format(demo=demo))
        expect(page.locator("h1")).to_be_visible()
        if name == "fleet":
            page.evaluate(OWN_SANDBOXES)
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
