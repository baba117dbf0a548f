"""One Chromium and one server for the session. Each test has its own context.

Each test fails on a console error, a CSP report, a dialog, or a request that leaves the machine.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_watch import BrowserWatch
from dashboard_process import DashboardProcess, fill, production_records, run_demo
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from site_crawl import Crawl, crawl

HERE = Path(__file__).parent
NewPage = Callable[..., Page]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="write the pictures of the tour to DIR (default: keep none)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test of this directory: only the session `browser` runs them."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium(chromium_program: str) -> Iterator[Browser]:
    """One browser without a network: names other than the loopback are not resolved."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_program,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        yield browser
        browser.close()


@pytest.fixture
def watch() -> Iterator[BrowserWatch]:
    """What the pages of the test did that a page must not do."""
    watch = BrowserWatch()
    yield watch
    assert watch.unexpected() == []


@pytest.fixture
def new_context(chromium: Browser, watch: BrowserWatch) -> Iterator[Callable[..., BrowserContext]]:
    """Make watched contexts; the arguments are those of `Browser.new_context`."""
    contexts: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        context = chromium.new_context(**options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        watch.attach(context)
        return context

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def new_page(new_context: Callable[..., BrowserContext], dashboard: DashboardProcess) -> NewPage:
    """Open a page in a context of its own. A path is relative to the dashboard."""

    def make(path: str = "", **options: Any) -> Page:
        page = new_context(base_url=dashboard.url, **options).new_page()
        if path:
            page.goto(path)
        return page

    return make


@pytest.fixture
def page(new_page: NewPage) -> Page:
    """A page in a context of its own."""
    return new_page()


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    """The server, on the rollouts of `fill`, a finished demo and two production rollouts."""
    server = DashboardProcess(tmp_path_factory.mktemp("site"))
    fill(server.jobs)
    run_demo(server.home)
    server.start()
    server.post_records(production_records("talk-1", fails=True))
    server.post_records(production_records("talk-2", fails=False))
    server.wait_for("/runs", lambda text: 'href="/r/book-the-review-room' in text)
    server.wait_for("/monitor", lambda text: text.count('href="/monitor/r/') == 2)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def demo(dashboard: DashboardProcess) -> str:
    """The id of a finished rollout that forked at a question."""
    return next(dashboard.jobs.glob("book-the-review-room__*")).name


@pytest.fixture(scope="session")
def empty_dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    """A server without any data."""
    server = DashboardProcess(tmp_path_factory.mktemp("empty"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def pages(dashboard: DashboardProcess, demo: str) -> Crawl:
    """All pages, with data."""
    # The job does not run, so the action is refused; its record is a page.
    dashboard.post_form("/jobs/walk/act/cancel")
    evidence = f"/r/{demo}?sel=n9&tab=evidence"
    starts = ("/", "/help", "/login", evidence, "/r/all-kinds?sel=n1", f"/r/{demo}?sel=n8&a=n7")
    return crawl(
        dashboard.url,
        (
            *starts,
            "/r/large",
            f"/r/{demo}",
            f"/r/{demo}/act/branch?node=n3",
            "/runs?q=nothing-matches",
        ),
    )


@pytest.fixture(scope="session")
def empty_pages(empty_dashboard: DashboardProcess) -> Crawl:
    """All pages of a server without data."""
    return crawl(empty_dashboard.url)
