"""Each page that a link leads to: no error, nothing for axe, and its data without JavaScript."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from dashboard_process import DashboardProcess
from playwright.sync_api import BrowserContext, Page, expect
from site_crawl import Crawl, page_routes

NewPage = Callable[..., Page]
AXE = AXE_FILE_PATH.read_text()
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""The rules that depend on the theme."""
_AGES = re.compile(r"[\d.]+ (ms|s|min|h|d)\b")


def violations(page: Page, options: dict[str, Any]) -> list[str]:
    """Return what axe reports: rule, element, reason."""
    # Its preload writes inline styles, which the CSP refuses.
    fixed = {"resultTypes": ["violations"], "preload": False}
    report = page.evaluate("options => axe.run(document, options)", fixed | options)
    return [
        f"{page.url} {violation['id']}: {node['html'][:150]} {node['failureSummary'][:200]}"
        for violation in report["violations"]
        for node in violation["nodes"]
    ]


def test_links_lead_to_each_page_and_none_is_broken(pages: Crawl, empty_pages: Crawl) -> None:
    assert pages.broken == {}
    assert empty_pages.broken == {}
    # They exist with an OpenID provider only.
    of_provider = {"/login/oidc", "/login/oidc/callback"}
    assert set(page_routes()) - of_provider == pages.routes


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_data", [True, False], ids=["data", "empty"])
def test_axe_reports_nothing_in_both_themes(
    has_data: bool,
    new_context: Callable[..., BrowserContext],
    request: pytest.FixtureRequest,
) -> None:
    server = request.getfixturevalue("dashboard" if has_data else "empty_dashboard")
    found: Crawl = request.getfixturevalue("pages" if has_data else "empty_pages")
    # Without the transitions of colours.
    options = {"base_url": server.url, "reduced_motion": "reduce"}
    page = new_context(**options).new_page()
    reported: list[str] = []
    for path in found.pages:
        page.emulate_media(color_scheme="light")
        page.goto(path)
        page.evaluate(AXE)
        reported += violations(page, {})
        page.emulate_media(color_scheme="dark")
        reported += violations(page, COLOURS)
    assert reported == []


def test_a_chosen_theme_has_the_colours_of_the_same_theme_of_the_system(new_page: NewPage) -> None:
    script = """() => {
      const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
      const text = rules.map((rule) => rule.cssText).join(" ");
      const names = [...new Set(text.match(/--(bf|pico)-[\\w-]+/g))];
      const style = getComputedStyle(document.documentElement);
      return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name)]));
    }"""
    for theme, other in (("light", "dark"), ("dark", "light")):
        page = new_page("/runs", color_scheme=theme, reduced_motion="reduce")
        system = page.evaluate(script)
        page.get_by_role("button", name=f"{other} theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", other)
        assert page.evaluate(script) != system
        page.get_by_role("button", name=f"{theme} theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.emulate_media(color_scheme=other)
        assert page.evaluate(script) == system


def test_without_javascript_each_page_shows_the_same(
    new_page: NewPage, pages: Crawl, dashboard: DashboardProcess
) -> None:
    with_script = new_page()
    without = new_page(java_script_enabled=False)
    for path in pages.pages:
        texts: list[str] = []
        for page in (with_script, without):
            page.goto(path)
            # The word "live", or a link that loads the page again.
            page.locator("#live-state, noscript").evaluate_all(
                "all => all.map((e) => { e.hidden = true; })"
            )
            texts.append(_AGES.sub("AGE", page.locator("body").inner_text()))
        assert texts[0] == texts[1], path
        assert len(texts[1]) > 100, path


def test_without_javascript_each_filter_chooses_the_runs_that_it_names(new_page: NewPage) -> None:
    page = new_page("/runs", java_script_enabled=False)
    names = page.locator("form.filters select").evaluate_all("all => all.map(each => each.name)")
    assert {"job", "status", "task", "agent"} <= set(names)
    total = page.locator("tr[data-row]").count()
    for name in names:
        page.goto("/runs")
        choice = page.locator(f"form.filters select[name={name}]")
        values = choice.locator("option").evaluate_all("all => all.map(each => each.value)")
        counts: list[int] = []
        for value in filter(None, values):
            page.goto("/runs")
            page.locator(f"form.filters select[name={name}]").select_option(value)
            page.get_by_role("button", name="Filter").click()
            expect(page).to_have_url(re.compile(f"{name}="))
            chip = page.get_by_role("link", name=f"Remove the filter {name} = {value}")
            counts.append(page.locator("tr[data-row]").count())
            chip.click()
            expect(page.locator("tr[data-row]")).to_have_count(total)
        assert all(0 <= count <= total for count in counts)
        assert not values[1:] or max(counts) > 0


def test_without_javascript_forms_work(new_page: NewPage) -> None:
    page = new_page("/runs?status=failed", java_script_enabled=False)
    page.get_by_label("save this view as").fill("broken <b>")
    page.get_by_role("button", name="Save").click()
    page.goto("/runs")
    page.get_by_role("link", name="broken <b>").click()
    expect(page).to_have_url(re.compile("status=failed"))
    page.get_by_role("button", name="Delete broken <b>").click()
    expect(page.get_by_role("link", name="broken <b>")).to_have_count(0)
    page.get_by_role("button", name="dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto("/runs")
    page.get_by_role("searchbox").fill("large")
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-row]")).to_have_count(1)
    page.locator("tr[data-row] a").first.click()
    expect(page).to_have_url(re.compile("/r/large"))
