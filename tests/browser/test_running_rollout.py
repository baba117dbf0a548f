"""The page of a real rollout that runs and forks: it grows, and ends as a fresh page begins."""

from collections.abc import Callable

from dashboard_process import DashboardProcess, begin_demo, wait_until
from playwright.sync_api import Page, expect

NewPage = Callable[..., Page]


TREE = """(tree) => [...tree.querySelectorAll("*")].map((each) => {
  const own = [...each.attributes].filter(({ name }) => !["tabindex", "data-near"].includes(name));
  return [each.localName, ...own.map(({ name, value }) => `${name}=${value}`).sort()].join(" ");
})"""
"""Each element of the tree, without the marks of scripts."""


def state(page: Page) -> dict[str, object]:
    """Return what the page of a rollout shows, apart from the focus."""
    parts = (".rollout-head", ".tree-side", "#pane")
    return {part: page.locator(part).inner_text() for part in parts} | {
        "tree": page.locator("#tree").evaluate(TREE)
    }


def test_tree_and_pane_grow_and_end_like_a_fresh_page(
    new_page: NewPage, dashboard: DashboardProcess
) -> None:
    process, name = begin_demo(dashboard.home)
    try:
        dashboard.wait_for("/runs", lambda text: name in text)
        path = f"/r/{name}?sel=n0"
        dashboard.wait_for(path, lambda text: 'id="t-n0"' in text)
        page = new_page(path)
        page.evaluate("window.wasNotLoadedAgain = true")
        pane, items = page.locator("#pane"), page.locator('#tree [role="treeitem"]')
        page.locator("#t-n0").focus()
        sizes, texts = [items.count()], {pane.inner_text()}

        def has_ended() -> bool:
            page.wait_for_timeout(50)
            if items.count() != sizes[-1]:
                sizes.append(items.count())
            texts.add(pane.inner_text())
            return page.locator(".liveness").count() == 0

        wait_until(has_ended, "the end of the rollout")
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    assert sizes == sorted(sizes)
    assert (sizes[0] < sizes[-1], sizes[-1], len(texts) > 1) == (True, 10, True), sizes
    assert page.evaluate("window.wasNotLoadedAgain")
    expect(page.locator("#t-n0")).to_be_focused()
    expect(page.locator('#tree [aria-selected="true"]')).to_have_id("t-n0")
    fresh = new_page(path)

    def is_equal() -> bool:
        # The result comes after the last event, and the place in the list of runs after both.
        fresh.reload()
        return state(page) == state(fresh)

    wait_until(is_equal, "a page like a fresh one")
