"""Each key of the help does what the help says, and a tree is a tree for a screen reader."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from dashboard_process import DashboardProcess
from playwright.sync_api import Locator, Page, expect

NewPage = Callable[..., Page]


@pytest.fixture
def tree(new_page: NewPage, demo: str) -> Page:
    """The page of a rollout that forked at its question n3, with n2 as the selected node."""
    page = new_page(f"/r/{demo}?sel=n2&list=")
    expect(focus_of_tree(page)).to_have_id("t-n2")
    return page


def press(page: Page, key: str) -> None:
    """Press a key when the scripts of the page are loaded."""
    page.wait_for_load_state()
    page.keyboard.press(key)


def focus_of_tree(page: Page) -> Locator:
    """Return the node that Tab leads to."""
    return page.locator('#tree [role="treeitem"][tabindex="0"]')


def expect_node(page: Page, name: str) -> None:
    """Require that a node has the focus, and that the pane shows it."""
    expect(page.locator(f"#t-{name}")).to_be_focused()
    expect(page.locator("#pane")).to_have_attribute("data-node", name)


def documented_keys(page: Page) -> dict[str, str]:
    """Return the keys of the help, and their descriptions."""
    page.goto("/help")
    rows = page.locator("main table tbody tr").all()
    return {
        row.locator("td").nth(0).inner_text(): row.locator("td").nth(1).inner_text() for row in rows
    }


def test_the_help_lists_the_keys_that_these_tests_press(new_page: NewPage) -> None:
    keys = " ".join(documented_keys(new_page()))
    assert set(keys.split()) >= {*"?/grjkhlJKondat15[]y", "Enter", "Esc"}


def test_question_mark_opens_the_help_and_escape_closes_it(page: Page) -> None:
    page.goto("/runs")
    press(page, "?")
    help_ = page.get_by_role("dialog", name="Keyboard")
    expect(help_).to_be_visible()
    press(page, "j")
    expect(help_).to_be_visible()
    press(page, "Escape")
    expect(help_).to_be_hidden()


def test_slash_searches_and_escape_leaves_the_field(page: Page) -> None:
    page.goto("/runs")
    press(page, "/")
    field = page.get_by_role("searchbox")
    expect(field).to_be_focused()
    page.keyboard.type("jg r?")
    expect(field).to_have_value("jg r?")
    press(page, "Escape")
    expect(field).not_to_be_focused()


def test_g_and_a_letter_lead_to_each_page_of_the_header(page: Page) -> None:
    page.goto("/help")
    links = page.locator("header nav a").all()
    keys = {str(link.get_attribute("data-key")): str(link.get_attribute("href")) for link in links}
    assert len(keys) == len(links) >= 4
    for key, target in keys.items():
        page.goto("/help")
        for letter in key.split():
            press(page, letter)
        expect(page).to_have_url(re.compile(re.escape(target) + "$"))


def test_j_k_enter_and_n_walk_the_rows_of_runs(page: Page) -> None:
    page.goto("/runs?sort=-reward")
    rows = page.locator("tr[data-row]")
    links = page.locator("tr[data-row] td > a:first-of-type")
    press(page, "j")
    expect(links.nth(0)).to_be_focused()
    press(page, "j")
    expect(links.nth(1)).to_be_focused()
    press(page, "k")
    expect(links.nth(0)).to_be_focused()
    press(page, "n")
    failed = page.locator("tr[data-failed] td > a:first-of-type")
    expect(failed.first).to_be_focused()
    assert rows.count() > failed.count() > 0
    target = str(failed.first.get_attribute("href"))
    press(page, "Enter")
    expect(page).to_have_url(re.compile(re.escape(target.partition("?")[0])))


def test_brackets_walk_the_list_that_the_reader_came_from(page: Page) -> None:
    page.goto("/runs?job=walk&sort=-when")
    page.locator("tr[data-row] a").first.click()
    place = page.get_by_role("navigation", name="List of runs")
    expect(place).to_contain_text("1 / 3")
    for key, expected in (("]", "2 / 3"), ("]", "3 / 3"), ("[", "2 / 3")):
        press(page, key)
        expect(place).to_contain_text(expected)


def test_j_k_h_l_and_capitals_walk_the_tree(tree: Page) -> None:
    for key, name in [
        ("l", "n3"),
        ("l", "n4"),
        ("J", "n5"),
        ("J", "n6"),
        ("K", "n5"),
        ("h", "n3"),
        ("h", "n2"),
        ("j", "n3"),
        ("j", "n4"),
        ("k", "n3"),
    ]:
        press(tree, key)
        expect_node(tree, name)


def test_arrows_home_and_end_walk_the_tree_that_has_the_focus(tree: Page) -> None:
    focus_of_tree(tree).focus()
    order = tree.locator('#tree [role="treeitem"]').evaluate_all("all => all.map(each => each.id)")
    for key, name in [
        ("ArrowRight", "t-n3"),
        ("ArrowDown", "t-n4"),
        ("ArrowLeft", "t-n3"),
        ("ArrowUp", "t-n2"),
        ("End", order[-1]),
        ("Home", order[0]),
    ]:
        press(tree, key)
        expect_node(tree, name.removeprefix("t-"))


def test_n_leads_to_the_worst_step(tree: Page) -> None:
    control = tree.locator('#pane [data-key="n"]').first
    target = re.search(r"sel=([^&]*)", str(control.get_attribute("href")))
    assert target is not None
    press(tree, "n")
    expect(tree.locator("#pane")).to_have_attribute("data-node", target[1])


def test_o_folds_the_node_and_unfolds_it(tree: Page) -> None:
    items = tree.locator('#tree [role="treeitem"]')
    before = items.count()
    press(tree, "l")
    expect_node(tree, "n3")
    press(tree, "o")
    expect(tree.locator("#t-n3")).to_have_attribute("aria-expanded", "false")
    assert items.count() < before
    press(tree, "o")
    expect(items).to_have_count(before)


def test_a_and_d_show_the_difference_of_two_nodes(tree: Page) -> None:
    for key in ("l", "l"):
        press(tree, key)
    expect_node(tree, "n4")
    press(tree, "a")
    expect(tree).to_have_url(re.compile("a=n4"))
    press(tree, "J")
    expect_node(tree, "n5")
    press(tree, "d")
    expect(tree).to_have_url(re.compile(r"/diff\?a=n4&b=n5"))


def test_digits_choose_the_tabs_and_keep_the_focus(tree: Page) -> None:
    tabs = tree.locator("#pane .tabs a")
    assert tabs.count() == 5
    for number in (2, 3, 4, 5, 1):
        press(tree, str(number))
        expect(tabs.nth(number - 1)).to_have_attribute("aria-current", "page")
    press(tree, "j")
    expect_node(tree, "n3")


def test_t_changes_the_theme(page: Page) -> None:
    page.goto("/runs")
    for theme in ("dark", "light"):
        press(page, "t")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)


def test_y_copies_the_command(new_page: NewPage, dashboard: DashboardProcess) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto("/runs?job=walk")
    press(page, "y")
    expect(page.locator("[data-answer]")).to_have_text("copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("[data-cli]").inner_text()
    assert copied.startswith("bench dashboard runs job=walk")


def test_keys_with_control_or_alt_are_left_to_the_browser(page: Page) -> None:
    page.goto("/runs")
    for keys in ("Alt+t", "Control+j", "Alt+?"):
        press(page, keys)
    assert page.locator("html").get_attribute("data-theme") is None
    assert page.evaluate("document.activeElement === document.body")


def walk(page: Page) -> list[dict[str, Any]]:
    """Return the items of the tree as the browser shows them to a screen reader, in order."""
    client = page.context.new_cdp_session(page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    by_id = {node["nodeId"]: node for node in nodes}

    def items(node: dict[str, Any]) -> Any:
        if node.get("role", {}).get("value") == "treeitem":
            facts = {each["name"]: each["value"].get("value") for each in node["properties"]}
            yield facts | {"name": node["name"]["value"]}
        for child in node.get("childIds", ()):
            if child in by_id:
                yield from items(by_id[child])

    (tree,) = (node for node in nodes if node.get("role", {}).get("value") == "tree")
    return list(items(tree))


@pytest.mark.parametrize("rollout", ["all-kinds", "large", "demo"])
def test_a_screen_reader_walks_the_tree_depth_first(rollout: str, page: Page, demo: str) -> None:
    page.goto(f"/r/{demo if rollout == 'demo' else rollout}?fold=0")
    items = walk(page)
    drawn = page.locator('#tree [role="treeitem"]').evaluate_all(
        """all => all.map(item => ({
            level: Number(item.getAttribute("aria-level")),
            place: Number(item.getAttribute("aria-posinset")),
            size: Number(item.getAttribute("aria-setsize")),
            text: [...item.querySelectorAll("text")].map(each => each.textContent),
        }))"""
    )
    assert len(items) == len(drawn) > 5
    assert items[0]["level"] == 1
    open_: list[dict[str, int]] = []
    for item, shown in zip(items, drawn, strict=True):
        assert item["level"] == shown["level"]
        assert all(part.strip() in item["name"] for part in shown["text"]), (item, shown)
        del open_[shown["level"] :]
        # Depth first: an item is a child of the one above, or the next sibling of an open one.
        assert len(open_) >= shown["level"] - 1
        is_next = len(open_) == shown["level"]
        before = open_.pop() if is_next else {"place": 0, "size": shown["size"]}
        assert shown["place"] == before["place"] + 1
        assert shown["size"] == before["size"] >= shown["place"]
        open_.append(shown)
