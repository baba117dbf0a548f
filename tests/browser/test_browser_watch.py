"""The browser tests notice what a page must not do."""

import pytest
from browser_watch import BrowserWatch
from playwright.sync_api import Page

BREACHES = {
    "an error of a script": ("setTimeout(() => { throw new Error('broken') })", "broken"),
    "a dialog": ("alert('xss')", "dialog: xss"),
    "a request that leaves": ("location.assign('http://elsewhere.test/x')", "request that leaves"),
    "an inline style": ("document.body.innerHTML = '<p style=\"color:red\">'", "CSP report"),
    "a missing file": ("new Image().src = '/static/missing.png'", "404"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_reported(name: str, page: Page, watch: BrowserWatch) -> None:
    script, expected = BREACHES[name]
    page.goto("/help")
    assert watch.problems == []
    watch.allow("")
    page.evaluate(script)
    for _ in range(100):
        if any(expected in problem for problem in watch.problems):
            break
        page.wait_for_timeout(50)
    assert any(expected in problem for problem in watch.problems), watch.problems
