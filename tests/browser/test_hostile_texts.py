"""Texts of agents, tasks, spans and files run no code in a browser, on any page."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from benchflow_contracts import EnvState
from browser_watch import BrowserWatch
from dashboard_process import DashboardProcess, production_records
from made_rollouts import table, write_rollout
from made_trees import tree_of_all_kinds
from playwright.sync_api import BrowserContext, Page, expect
from xss_payloads import CANARY, PAYLOADS

# A log is UTF-8, which has no lone surrogate. A directory whose name has a character that is not
# printable is not listed.
TEXTS = tuple(payload.replace("\ud800", "") for payload in PAYLOADS)
NAMES = tuple(
    "".join(filter(str.isprintable, text)).replace("/", "\N{DIVISION SLASH}") + str(number)
    for number, text in enumerate(TEXTS)
)


def states(text: str) -> dict[str, EnvState]:
    """Return the states of two leaves, with the text as names of files, tables and columns."""
    columns = ("id", text)
    return {
        name: EnvState(
            databases={text: {text: table((value, text), columns=columns)}},
            files={f"{text}{value}": "1"},
        )
        for value, name in enumerate(("n4", "n5"))
    }


def write(jobs: Path) -> None:
    """Write a job and a rollout for each payload; the payload is in their names, too."""
    for number, (text, name) in enumerate(zip(TEXTS, NAMES, strict=True)):
        tree = replace(tree_of_all_kinds(text), rollout_id=f"hostile-{number:02}")
        write_rollout(tree, jobs / f"job {name}" / tree.rollout_id, states(text))
        write_rollout(replace(tree, rollout_id=name), jobs / name)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    server = DashboardProcess(tmp_path_factory.mktemp("hostile"))
    write(server.jobs)
    server.start()
    for text in TEXTS:
        server.post_records(production_records(text, text, fails=True))
    server.wait_for("/runs", lambda page: f">{2 * len(TEXTS)} of {2 * len(TEXTS)}<" in page)
    server.wait_for("/monitor", lambda page: page.count('href="/monitor/r/') == len(TEXTS))
    yield server
    server.kill()


@pytest.fixture
def page(new_context: Callable[..., BrowserContext], hostile: DashboardProcess) -> Page:
    return new_context(base_url=hostile.url).new_page()


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_a_payload_in_each_field_of_a_rollout_stays_text(number: int, page: Page) -> None:
    page.goto(f"/r/hostile-{number:02}?sel=n1&full=1")
    pane = page.locator("#pane")
    for key, tab in enumerate(("reward", "evidence", "cost", "raw events", "steps"), 2):
        page.keyboard.press(str(key if key < 6 else 1))
        expect(pane.locator(".tabs [aria-current]")).to_have_text(tab)
        assert CANARY in pane.inner_text()
    page.keyboard.press("j")
    expect(pane).to_have_attribute("data-node", "n2")
    page.goto(f"/r/hostile-{number:02}/diff?a=n4&b=n5")
    assert page.locator("main").inner_text().count(CANARY) > 5


def test_payloads_as_names_of_rollouts_and_jobs_stay_text(
    page: Page, hostile: DashboardProcess
) -> None:
    for path in ("/runs", "/jobs", f"/search?q={CANARY}", "/search?q=alert"):
        page.goto(path)
        assert page.locator("main").inner_text().count(CANARY) >= len(TEXTS) - 2, path
    for name in NAMES:
        for path in (f"/r/{quote(name, safe='')}", f"/jobs/{quote(f'job {name}', safe='')}"):
            page.goto(path)
            assert CANARY in page.locator("h1").inner_text() + page.locator("main").inner_text()


def test_payloads_in_production_rollouts_stay_text(page: Page) -> None:
    page.goto("/monitor?by=service")
    links = page.locator("main a[href^='/monitor/r/']").evaluate_all("all => all.map(a => a.href)")
    assert len(links) == len(TEXTS)
    for link in links:
        page.goto(link)
        assert page.locator("main").inner_text().count(CANARY) > 5
    for path in ("/monitor", "/alerts"):
        page.goto(path)


def test_payloads_in_a_query_stay_text(page: Page, watch: BrowserWatch) -> None:
    # A search refuses what is not a query, with status 400.
    watch.allow("status of 400")
    for text in TEXTS:
        word = quote(text, safe="")
        page.goto(f"/runs?q={word}&task={word}&agent={word}")
        assert page.locator("#runs").count() == 1
        page.goto(f"/monitor?service={word}&environment={word}")
        page.goto(f"/search?q={word}")
