"""A bundle in the browser: from disk it shows what the server shows, and asks for nothing."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_watch import BrowserWatch
from dashboard_process import DashboardProcess
from playwright.sync_api import BrowserContext, Page

BENCH = Path(sys.executable).with_name("bench")
TEXT = """() => {
  const main = document.querySelector("main").cloneNode(true);
  for (const each of main.querySelectorAll(
    "form, dialog, noscript, [data-server-only], [data-copy], time"
  )) each.remove();
  return main.textContent.split(/\\s+/).join(" ").trim();
}"""


@pytest.fixture(scope="module")
def bundle(dashboard: DashboardProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundle") / "pages"
    words = [str(BENCH), "view", "bundle", str(target), "--pages", "80"]
    # The command lines on the pages name the directory as the server has it.
    subprocess.run(words, cwd=dashboard.home, check=True)
    return target


@pytest.mark.parametrize("javascript", [True, False])
def test_a_tree_from_disk_shows_what_the_server_shows(
    new_context: Callable[..., BrowserContext],
    new_page: Callable[..., Page],
    bundle: Path,
    demo: str,
    watch: BrowserWatch,
    javascript: bool,
) -> None:
    watch.allow(r"request that leaves: file://")
    disk = new_context(java_script_enabled=javascript).new_page()
    disk.goto(f"file://{bundle}/index.html")
    disk.get_by_role("link", name=demo).first.click()
    # A page without scripts still takes questions of the test.
    served = new_page(f"/r/{demo}")
    assert _text(disk) == _text(served)
    colour = "() => getComputedStyle(document.querySelector('#tree circle')).fill"
    assert disk.evaluate(colour) == served.evaluate(colour)
    box: Any = disk.locator("#tree").bounding_box()
    assert box["width"] > 100

    disk.goto(f"file://{bundle}/r/{demo}/index.html")
    disk.locator('#tree [role="treeitem"] > :first-child').nth(2).click()
    disk.wait_for_url(re.compile(r"sel\.n\d+\.html"))
    node = disk.locator("#pane").get_attribute("data-node")
    served.goto(f"/r/{demo}?sel={node}")
    assert _text(disk) == _text(served)


def _text(page: Page) -> str:
    return str(page.evaluate(TEXT))
