"""Pages follow a running rollout by one stream for a browser, and keep what the reader does."""

import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import NodeError
from benchflow_dashboard.security.users import add_user
from browser_watch import BrowserWatch
from dashboard_process import DashboardProcess, production_records, unscored, wait_until
from made_rollouts import write_rollout
from made_trees import random_tree
from playwright.sync_api import BrowserContext, Page, expect

WAIT_MS = 45_000
AWAY = "ERR_(CONNECTION|INCOMPLETE|EMPTY|NETWORK)"
COLLECT = """
globalThis.received = [];
document.addEventListener("live:events", ({ detail }) => globalThis.received.push(detail));
"""
NORMAL = """(main) => {
  const read = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeValue.trim();
    if (node.matches("time, .liveness, .viewport, td:has(.live)")) return "";
    const own = ["tabindex", "data-near"];
    const marks = [...node.attributes].filter((each) => !own.includes(each.name));
    const head = marks.map((each) => ` ${each.name}=${each.value}`).sort().join("");
    return `<${node.localName}${head}>${[...node.childNodes].map(read).join("")}`;
  };
  return [...main.childNodes].map(read).join("");
}"""
"""Return what the server made of a page: without ages, and without the marks of scripts."""


class GrowingRollout:
    """The log of a made rollout, which is written line by line."""

    def __init__(self, jobs: Path, name: str, nodes: int) -> None:
        made = jobs.parent / "made" / name
        write_rollout(replace(random_tree(nodes), rollout_id=name), made)
        self._lines = (made / "events.jsonl").read_text().splitlines(keepends=True)
        self._result = (made / "result.json").read_bytes()
        self.url, self.directory = f"/r/{name}", jobs / name
        self.total, self.written = len(self._lines), 0
        self.directory.mkdir()
        self.write(3)

    def write(self, count: int = 1) -> None:
        """Write the next lines."""
        lines = self._lines[self.written : self.written + count]
        with (self.directory / "events.jsonl").open("a") as file:
            file.write("".join(lines))
        self.written += len(lines)

    def end(self) -> None:
        """Write what is left, and the result."""
        self.write(self.total)
        fresh = self.directory / "result.tmp"
        fresh.write_bytes(self._result)
        fresh.rename(self.directory / "result.json")


@pytest.fixture
def rollout(
    dashboard: DashboardProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> GrowingRollout:
    """A running rollout; a parameter is the number of its nodes."""
    rollout = GrowingRollout(dashboard.jobs, tmp_path.name, getattr(request, "param", 40))
    dashboard.wait_for("/runs?sort=-when", lambda text: rollout.url in text)
    return rollout


class CuttingProxy:
    """Passes connections on to the dashboard. `cut` ends each after some more bytes."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.streams = 0
        self._budget: int | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, size: int) -> None:
        """End the stream after `size` more of its bytes."""
        with self._lock:
            self._budget = size

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._send, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        is_stream = False
        with closing(client), closing(server), suppress(OSError):
            while data := server.recv(65_536):
                if not is_stream and b"text/event-stream" in data:
                    is_stream = True
                    self.streams += 1
                # The browser waits less, so that the test takes less time.
                data = data.replace(b"retry: 500", b"retry: 020")
                part = self._take(len(data)) if is_stream else None
                client.sendall(data[:part])
                if part is not None:
                    client.shutdown(socket.SHUT_RDWR)
                    return

    def _take(self, size: int) -> int | None:
        with self._lock:
            if self._budget is None or self._budget >= size:
                self._budget = None if self._budget is None else self._budget - size
                return None
            part, self._budget = self._budget, None
            return part


@pytest.fixture
def proxy(dashboard: DashboardProcess) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(dashboard.url)
    yield proxy
    proxy.close()


def expect_live(page: Page) -> None:
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live", timeout=WAIT_MS)


def expect_events(page: Page, count: int) -> None:
    expect(page.locator("main")).to_have_attribute("data-seq", str(count - 1), timeout=WAIT_MS)


def expect_fresh(page: Page) -> None:
    """Wait until the page is what a load of its URL shows."""
    fresh = page.context.new_page()

    def is_equal() -> bool:
        fresh.goto(page.url)
        return content_of(page) == content_of(fresh)

    wait_until(is_equal, page.url)
    fresh.close()


def content_of(page: Page) -> str:
    content: str = page.locator("main").evaluate(NORMAL)
    return content


def expect_each_event_once(page: Page, first: int, end: int) -> None:
    """Wait for the last event: the page may have read the log before it gets the events."""

    def received() -> list[int]:
        frames: list[dict[str, Any]] = page.evaluate("received")
        return [seq for frame in frames for seq, _, _ in frame["events"]]

    wait_until(lambda: end - 1 in received(), "the last event")
    assert received() == list(range(first, end))


def test_a_tree_grows_and_keeps_focus_scroll_and_selection(
    new_page: Callable[..., Page], rollout: GrowingRollout
) -> None:
    rollout.write(10)
    page = new_page(f"{rollout.url}?sel=n1&tab=events", viewport={"width": 700, "height": 500})
    expect_live(page)
    page.locator("#t-n1").focus()
    page.keyboard.press("j")
    expect(page.locator("#pane")).to_have_attribute("data-node", "n2")
    page.locator("#pane summary").first.click()
    page.locator("#t-n2").focus()
    frame = page.locator("#tree-scroll")
    frame.evaluate("(frame) => frame.scrollTo(120, 0)")
    page.evaluate("() => getSelection().selectAllChildren(document.querySelector('#pane h2'))")
    section = page.locator("#pane details").first
    section.evaluate("(section) => section.scrollIntoView()")
    place = section.bounding_box()
    assert place is not None
    while rollout.written < rollout.total:
        rollout.write(20)
        expect_events(page, rollout.written)
        assert page.evaluate("document.activeElement.id") == "t-n2"
        assert page.evaluate("getSelection().toString()") == "n2"
        # What the reader looks at stays in its place, also when the tree above it grows.
        assert section.bounding_box() == pytest.approx(place, abs=2)
        assert frame.evaluate("(frame) => frame.scrollLeft") == 120
        assert section.get_attribute("open") is not None
    rollout.end()
    expect(page.locator(".rollout-head")).to_contain_text("completed", timeout=WAIT_MS)
    page.locator("#pane summary").first.click()
    expect_fresh(page)


@pytest.mark.parametrize("rollout", [1_500], indirect=True)
def test_a_large_tree_gets_its_changes_only_and_keeps_the_node_with_the_focus(
    new_page: Callable[..., Page], rollout: GrowingRollout
) -> None:
    rollout.write(1_300)
    sizes: list[int] = []
    page = new_page(f"{rollout.url}?fold=0", viewport={"width": 900, "height": 600})
    expect_live(page)
    whole = len(page.locator("#tree").inner_html())
    page.on("response", lambda each: sizes.append(len(each.body())) if "fold" in each.url else None)
    page.locator("#tree a[tabindex='0']").focus()
    name = page.evaluate("document.activeElement.id")
    for _ in range(4):
        rollout.write(3)
        expect_events(page, rollout.written)
        assert name.startswith("t-n")
        assert page.evaluate("document.activeElement.id") == name
    # A child of the root changes the number of siblings of many nodes, and other nodes do not.
    assert min(sizes) < whole / 2
    rollout.end()
    expect_events(page, rollout.total)
    expect(page.locator("#tree")).to_have_class("tree shapes")
    expect_fresh(page)


def test_the_lists_and_a_form_that_is_filled_in_are_kept_up_to_date(
    new_page: Callable[..., Page], dashboard: DashboardProcess, rollout: GrowingRollout
) -> None:
    page = new_page("/runs")
    jobs = page.context.new_page()
    jobs.goto("/jobs")
    for each in (page, jobs):
        expect_live(each)
    row = page.locator(f"a[href^='{rollout.url}?']")
    row.focus()
    name = page.locator("input[name=name]")
    name.fill("my view")
    row.focus()
    made = replace(random_tree(5), rollout_id=f"listed-{rollout.directory.name}")
    write_rollout(made, dashboard.jobs / "listed" / made.rollout_id, finished_at=900.0)
    rollout.end()
    expect(page.locator(f"tr:has(a[href^='/r/{made.rollout_id}'])")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator(f"tr:has(a[href^='{rollout.url}?'])")).to_contain_text("completed")
    assert page.evaluate("document.activeElement.id") == row.get_attribute("id")
    assert name.input_value() == "my view"
    for each in (page, jobs):
        expect_fresh(each)


def test_reports_follow_the_runs_and_keep_choices_and_focus(
    new_page: Callable[..., Page], dashboard: DashboardProcess, rollout: GrowingRollout
) -> None:
    failures = new_page("/failures")
    paths = ["/jobs/walk/compare", "/search?q=result", "/cost", "/rewards", "/fleet", "/actions"]
    others = [failures.context.new_page() for _ in [*paths, ""]]
    for page, path in zip(others, [*paths, f"{rollout.url}/diff"], strict=True):
        page.goto(path)
    for page in (failures, *others):
        expect_live(page)
    failures.get_by_label("task").select_option("made/task")
    link = failures.locator("tr[data-failed] a").first
    link.focus()
    address = link.get_attribute("href")
    # The new task is before the chosen one, and the new cause before the one with the focus.
    made = unscored(replace(random_tree(5), rollout_id=f"grown-{rollout.directory.name}"))
    made = replace(
        made, task_id="a/first", error=NodeError(boundary="aaa", type="E", message="another cause")
    )
    write_rollout(made, dashboard.jobs / "grown" / made.rollout_id, finished_at=900.0)
    rollout.end()
    expect(failures.locator("main")).to_contain_text("another cause", timeout=WAIT_MS)
    assert failures.get_by_label("task").input_value() == "made/task"
    assert failures.evaluate("document.activeElement.getAttribute('href')") == address
    for page in (failures, *others):
        expect_fresh(page)


def test_the_charts_of_production_follow_the_records(
    new_page: Callable[..., Page], dashboard: DashboardProcess
) -> None:
    page = new_page("/monitor")
    expect_live(page)
    dashboard.post_records(production_records("live-talk", fails=False))
    expect(page.locator("main")).to_contain_text("live-talk", timeout=WAIT_MS)
    expect_fresh(page)


@pytest.mark.parametrize("rollout", [400], indirect=True)
def test_a_stream_that_is_cut_fifty_times_loses_nothing_and_repeats_nothing(
    new_context: Callable[..., BrowserContext],
    proxy: CuttingProxy,
    rollout: GrowingRollout,
    watch: BrowserWatch,
) -> None:
    watch.allow(AWAY)
    pick = random.Random(11)
    page = new_context(base_url=proxy.url).new_page()
    page.add_init_script(COLLECT)
    page.goto(rollout.url)
    expect_live(page)
    begin = rollout.written
    for _ in range(50):
        streams = proxy.streams
        proxy.cut_after(pick.randint(0, 400))
        while proxy.streams == streams:
            rollout.write()
            assert rollout.written < rollout.total
            page.wait_for_timeout(30)
    rollout.end()
    expect_events(page, rollout.total)
    expect_each_event_once(page, begin, rollout.total)
    expect_fresh(page)


def test_a_server_that_is_killed_is_reported_and_followed_again(
    new_page: Callable[..., Page],
    dashboard: DashboardProcess,
    rollout: GrowingRollout,
    watch: BrowserWatch,
) -> None:
    watch.allow(AWAY)
    page = new_page()
    page.add_init_script(COLLECT)
    page.goto(rollout.url)
    runs = page.context.new_page()
    runs.goto("/runs")
    for each in (page, runs):
        expect_live(each)
    begin = rollout.written
    rollout.write(2)
    expect_events(page, rollout.written)
    dashboard.kill(signal.SIGKILL)
    for each in (page, runs):
        expect(each.locator("#live-state")).to_contain_text("not live since", timeout=WAIT_MS)
    rollout.write(5)
    dashboard.start()
    for each in (page, runs):
        expect_live(each)
    expect_events(page, rollout.written)
    rollout.end()
    expect_events(page, rollout.total)
    expect_each_event_once(page, begin, rollout.total)
    for each in (page, runs):
        expect_fresh(each)


def test_ten_tabs_share_one_stream_and_all_are_live(
    new_context: Callable[..., BrowserContext], proxy: CuttingProxy, rollout: GrowingRollout
) -> None:
    context = new_context(base_url=proxy.url)
    paths = ["/runs", rollout.url, "/monitor", "/r/all-kinds", rollout.url] * 2
    tabs = [(path, context.new_page()) for path in paths]
    for path, tab in tabs:
        tab.goto(path)
    for _, tab in tabs:
        expect_live(tab)
    # Each of the first four opened the stream again with what it wants besides.
    assert proxy.streams <= 4
    rollout.end()
    for path, tab in tabs:
        if path == rollout.url:
            expect_events(tab, rollout.total)
        elif path == "/runs":
            row = tab.locator(f"tr:has(a[href^='{rollout.url}?'])")
            expect(row).to_contain_text("completed", timeout=WAIT_MS)
        else:
            expect_fresh(tab)


def test_without_shared_workers_a_hidden_page_gives_its_connection_back(
    new_context: Callable[..., BrowserContext], proxy: CuttingProxy, rollout: GrowingRollout
) -> None:
    context = new_context(base_url=proxy.url)
    context.add_init_script(
        """
        delete globalThis.SharedWorker;
        globalThis.isHidden = false;
        Object.defineProperty(document, "hidden", { get: () => globalThis.isHidden });
        globalThis.show = (isShown) => {
          globalThis.isHidden = !isShown;
          document.dispatchEvent(new Event("visibilitychange"));
        };
        """
    )
    page = context.new_page()
    page.goto(rollout.url)
    expect_live(page)
    page.evaluate("show(false)")
    rollout.end()
    page.wait_for_timeout(500)
    assert page.locator("main").get_attribute("data-seq") == "2"
    page.evaluate("show(true)")
    expect_events(page, rollout.total)
    assert proxy.streams == 2
    expect_fresh(page)


def test_without_shared_workers_keys_walk_a_tree_that_grows(
    new_context: Callable[..., BrowserContext], proxy: CuttingProxy, rollout: GrowingRollout
) -> None:
    rollout.write(10)
    context = new_context(base_url=proxy.url)
    context.add_init_script("delete globalThis.SharedWorker;")
    page = context.new_page()
    page.goto(f"{rollout.url}?sel=n1")
    expect_live(page)
    for number in (2, 3, 4):
        page.keyboard.press("j")
        expect(page.locator("#pane")).to_have_attribute("data-node", f"n{number}")
        rollout.write(5)
        expect_events(page, rollout.written)
        expect(page.locator(f"#t-n{number}")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def test_a_logout_in_one_tab_is_reported_in_the_others(
    new_context: Callable[..., BrowserContext], tmp_path: Path
) -> None:
    server = DashboardProcess(tmp_path)
    token = add_user(tmp_path / "users.toml", "reader", "viewer")
    server.start("--users", "users.toml")
    try:
        context = new_context(base_url=server.url)
        first, second = context.new_page(), context.new_page()
        first.goto("/runs")
        first.get_by_label("token").fill(token)
        first.get_by_role("button", name="Log in").click()
        second.goto("/monitor")
        for page in (first, second):
            expect_live(page)
        first.get_by_role("button", name="Log out").click()
        expect(second.locator("#live-state")).to_contain_text("logged out", timeout=WAIT_MS)
        second.get_by_role("link", name="log in").click()
        second.get_by_label("token").fill(token)
        second.get_by_role("button", name="Log in").click()
        expect(second).to_have_url(f"{server.url}/monitor")
        expect_live(second)
    finally:
        server.kill()


def test_a_page_without_javascript_shows_its_data_and_a_link_to_refresh(
    new_page: Callable[..., Page], rollout: GrowingRollout
) -> None:
    page = new_page(rollout.url, java_script_enabled=False)
    rollout.end()
    page.get_by_role("link", name="refresh").click()
    assert page.locator("main").get_attribute("data-seq") == str(rollout.total - 1)
