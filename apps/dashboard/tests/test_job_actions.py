"""Actions on a job: who may act, which order the job gets, and what the page says."""

import asyncio
import dataclasses
import json
import os
import platform
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.actions import launch
from benchflow_dashboard.actions.records import ActionRecord, ActionStore
from benchflow_dashboard.index import Index, Job, Totals, update_index
from benchflow_dashboard.pages.job import JobView, offered_actions
from benchflow_dashboard.security.users import Role, add_user
from benchflow_jobs import orders
from benchflow_jobs.control_socket import serve_orders
from benchflow_jobs.heartbeat import HEARTBEAT_FILE, Heartbeat
from benchflow_store.database import JobWriter
from dashboard_forms import csrf_of
from job_records import PLAN, planned
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import tree_of_climbs
from watching import until

ADDRESS = "https://127.0.0.1:8642"
Client = TestClient[Litestar]
ORDERS = {
    "pause": ("pause", {"now": False, "keep": False, "reason": "why not"}),
    "pause-now": ("pause", {"now": True}),
    "pause-keep": ("pause", {"keep": True}),
    "resize": ("set", {"slots": 7}),
    "cancel": ("cancel", {}),
}


class RunningJob:
    """The control socket of a job, with the orders that came."""

    def __init__(self) -> None:
        self.orders: list[orders.Order] = []
        self.refusal = ""

    async def receive(self, order: orders.Order) -> orders.Reply:
        self.orders.append(order)
        if self.refusal:
            return orders.Reply(ok=False, message=self.refusal, hint="try later")
        return orders.Reply(ok=True, message=f"did {order.do}")

    @contextmanager
    def serving(self, directory: Path) -> Generator[None]:
        """Answer orders in a thread, as the process of a job does."""
        ready, loop, end = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

        async def serve() -> None:
            async with serve_orders(directory, self.receive):
                ready.set()
                await end.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        try:
            assert ready.wait(10)
            yield
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join()
            loop.close()


class Site:
    """A dashboard with three users, and the job `night` with four slots."""

    def __init__(self, home: Path) -> None:
        self.jobs = home / "jobs"
        self.job = self.jobs / "night"
        self.job.mkdir(parents=True)
        asyncio.run(self._write_record())
        users = home / "users.toml"
        roles: tuple[Role, ...] = ("viewer", "operator", "admin")
        self.tokens = {role: add_user(users, role, role) for role in roles}
        self.audit = home / "audit.jsonl"
        self.settings = DashboardSettings(
            jobs_dir=self.jobs, index=home / "index.db", users=users, https=True
        )
        update_index(home / "index.db", self.jobs)
        self.app = create_app(self.settings, index=Index(home / "index.db", self.jobs))

    async def _write_record(self) -> None:
        async with JobWriter(self.job / "record.db", "night") as writer:
            await writer.begin(PLAN, planned(4))

    def log_in(self, client: Client, role: str) -> None:
        form = {"token": self.tokens[role], "next": "/help"}
        assert client.post("/login", data=form, follow_redirects=False).status_code == 303

    def audited(self) -> list[tuple[str, str, str, str]]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [
            (line["user"], line["action"], line["target"], line["outcome"])
            for line in lines
            if line["action"] != "login"
        ]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with TestClient(site.app, base_url=ADDRESS) as client:
        site.log_in(client, "operator")
        yield client


@pytest.fixture
def running(site: Site) -> Iterator[RunningJob]:
    job = RunningJob()
    with job.serving(site.job):
        yield job


def post(client: Client, action: str, **fields: str) -> Any:
    form = {"csrf": csrf_of(client), **fields}
    return client.post(f"/jobs/night/act/{action}", data=form)


def shown(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_an_action_gives_the_order_of_its_command_and_is_audited(
    site: Site, client: Client, running: RunningJob
) -> None:
    for action, (do, fields) in ORDERS.items():
        page = post(client, action, reason="why  not", concurrency="7")

        order = running.orders.pop()
        assert not running.orders
        assert order.do == do
        assert order.by.endswith("operator in the dashboard")
        assert {name: getattr(order, name) for name in fields} == fields
        assert 'data-outcome="accepted"' in page.text
        assert f"did {do}" in page.text
        assert site.audited()[-2:] == [
            ("operator", action, "night", "requested"),
            ("operator", action, "night", f"accepted: did {do}"),
        ]
        assert f"did {do}" in client.get("/jobs/night").text
        assert f"did {do}" in client.get("/actions").text


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        ({"is_live": True}, {"pause", "pause-now", "pause-keep", "resize", "cancel"}),
        ({"is_live": True, "pause": {"by": "ana"}}, {"resume", "resize", "cancel"}),
        ({"pending": 1}, {"resume"}),
        ({"pending": None}, {"resume"}),
        ({"pending": 0}, set()),
        ({"pending": 0, "by_boundary": {"agent": 1}}, {"resume"}),
    ],
)
def test_a_job_offers_the_actions_that_its_state_allows(
    state: dict[str, Any], offered: set[str]
) -> None:
    failures = state.pop("by_boundary", {})
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Job))
    job = Job(**{**fields, "is_live": False, "pause": None, "pending": 0, **state})
    totals = Totals(1, {}, failures, 0, None, None, None, 0)
    view = JobView(job, totals, 1, None, (), ())
    assert set(offered_actions(view)) == offered


def test_each_action_is_a_link_to_a_page_with_its_command(
    client: Client, running: RunningJob
) -> None:
    links = set(re.findall(r'href="(/jobs/night/act/[a-z-]+)"', client.get("/jobs/night").text))
    # The record has an open slot and no lock, so the page offers to run the rest.
    assert links == {"/jobs/night/act/resume"}
    for link in (f"/jobs/night/act/{name}" for name in (*ORDERS, "resume")):
        page = client.get(link)
        assert page.status_code == 200
        assert "bench job " in page.text
        for fact in ("fidelity", "cost", "time"):
            assert f'data-fact="{fact}"' in page.text
    assert not running.orders


def test_what_nothing_measured_is_unknown(client: Client, running: RunningJob) -> None:
    text = shown(client.get("/jobs/night/act/cancel").text)

    assert "cost unknown: no rollout of this job reported a cost" in text
    assert "time unknown: no rollout of this job has ended" in text
    assert "$0" not in text


def test_the_page_says_what_the_last_fork_of_the_job_showed(
    site: Site, client: Client, running: RunningJob
) -> None:
    def fidelity() -> str:
        return shown(client.get("/jobs/night/act/pause-keep").text)

    assert "no fork of this job shows yet what its sandboxes can do" in fidelity()
    tree = tree_of_climbs([0, 1])
    tree.status = "running"
    write_rollout(tree, site.job / tree.rollout_id)
    until("the fork", lambda: "the last fork of this job was state: not live" in fidelity())


def test_a_viewer_may_neither_act_nor_prepare_an_action(site: Site, running: RunningJob) -> None:
    with TestClient(site.app, base_url=ADDRESS) as client:
        site.log_in(client, "viewer")
        assert "/act/" not in client.get("/jobs/night").text
        for action in (*ORDERS, "resume"):
            assert client.get(f"/jobs/night/act/{action}").status_code == 403
            assert post(client, action, concurrency="1").status_code == 403
            user, name, target, outcome = site.audited()[-1]
            assert (user, name, target) == ("viewer", action, "/jobs/night")
            assert outcome.startswith("refused: this needs the role 'operator'")

    assert not running.orders
    assert len(site.audited()) == 2 * (len(ORDERS) + 1)


def test_a_form_of_another_session_gives_no_order(client: Client, running: RunningJob) -> None:
    for csrf in ("", "wrong"):
        answer = client.post("/jobs/night/act/cancel", data={"csrf": csrf})
        assert answer.status_code == 403
    assert not running.orders


def test_an_order_that_the_job_refuses_is_shown_with_its_hint(
    site: Site, client: Client, running: RunningJob
) -> None:
    running.refusal = "the job is ending"
    page = post(client, "pause")

    assert 'data-outcome="refused"' in page.text
    assert "the job is ending" in page.text
    assert "Hint: try later." in page.text
    assert site.audited()[-1][3] == "refused: the job is ending"


def test_a_dead_job_takes_no_order(site: Site, client: Client) -> None:
    for action in ORDERS:
        before = shown(client.get(f"/jobs/night/act/{action}").text)
        after = shown(post(client, action, concurrency="7").text)

        for text in (before, after):
            assert "no process runs job 'night'" in text
            assert "`bench job resume` continues the job" in text
        assert site.audited()[-1][3].startswith("refused: no process runs job")


def test_a_job_on_another_machine_takes_no_order_and_is_not_resumed(
    site: Site, client: Client
) -> None:
    write_heartbeat(site.job, host="elsewhere")
    for action in (*ORDERS, "resume"):
        text = shown(post(client, action, concurrency="7").text)
        assert "runs on another machine: 'elsewhere', process 4711" in text
        assert "give the order on 'elsewhere'" in text


def write_heartbeat(job: Path, host: str, *, has_ended: bool = False) -> None:
    beat = Heartbeat(
        job="night",
        epoch=1,
        process=4711,
        host=host,
        boot="",
        beat=0,
        at=0.0,
        monotonic=0.0,
        interval_sec=5.0,
        has_ended=has_ended,
    )
    path = job / HEARTBEAT_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(beat.model_dump_json())


def test_a_job_that_runs_and_is_not_paused_cannot_be_resumed(
    client: Client, running: RunningJob
) -> None:
    assert "runs and is not paused" in shown(post(client, "resume").text)
    assert not running.orders


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("code", "outcome"), [(0, "ended"), (3, "failed")])
def test_a_resume_of_a_dead_job_starts_its_command_with_a_log(
    site: Site,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    outcome: str,
) -> None:
    write_heartbeat(site.job, host=platform.node())
    bench = program(tmp_path / "bench", f'echo "called with $*"; exit {code}')
    monkeypatch.setattr(launch, "bench_program", lambda: bench)
    page = post(client, "resume")
    url = str(page.url)
    until("the end of the command", lambda: f'"{outcome}"' in client.get(url).text)

    text = client.get(url).text
    assert f"called with job resume {site.job} --quiet" in unescape(text)
    assert f"exit code {code}" in text
    [log] = site.settings.actions_path().glob("*.log")
    assert log.stat().st_mode & 0o777 == 0o600
    assert not list(site.job.glob("*.log"))


def test_a_viewer_gets_the_texts_of_an_action_without_secrets(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "blue-horse-battery-staple"
    monkeypatch.setenv("UPSTREAM_API_KEY", secret)
    store = ActionStore(site.settings.actions_path())
    record = ActionRecord(
        id=store.new_id(),
        at=0.0,
        user="operator",
        action="resume",
        job="night",
        target="night",
        back="/jobs/night",
        command=("bench", f"--prompt={secret}"),
        outcome="failed",
        message=f"no answer with {secret}",
    )
    store.write(record)
    log = store.open_log(record.id)
    os.write(log, f"key {secret}\nAuthorization: Bearer {secret}\nended".encode())
    os.close(log)
    assert client.get(f"/actions/{record.id}").text.count(secret) >= 4
    site.log_in(client, "viewer")
    for path in (f"/actions/{record.id}", "/actions"):
        text = client.get(path).text
        assert "no answer with" in text
        assert secret not in text
    assert "ended" in client.get(f"/actions/{record.id}").text


def test_the_command_ends_neither_with_the_dashboard_nor_by_its_signals(
    site: Site, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench = program(tmp_path / "bench", f"ps -o sid= -p $$; cat {fifo}")
    monkeypatch.setattr(launch, "bench_program", lambda: bench)
    url = str(post(client, "resume").url)
    until("the session of the command", lambda: "<pre" in client.get(url).text)
    text = client.get(url).text
    assert "◔ running" in text
    [session] = re.findall(r"<pre[^>]*>\s*(\d+)", text)
    assert int(session) != os.getsid(0)
    fifo.write_text("end\n")
    until("the end of the command", lambda: '"ended"' in client.get(url).text)


def test_without_the_program_a_resume_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise UsageError("the command `bench` was not found", hint="install it")

    monkeypatch.setattr(launch, "bench_program", missing)
    text = shown(post(client, "resume").text)
    assert "refused" in text
    assert "the command `bench` was not found" in text


def test_an_action_that_cannot_be_audited_does_not_happen(
    site: Site, client: Client, running: RunningJob
) -> None:
    csrf = csrf_of(client)
    site.audit.unlink()
    site.audit.mkdir()
    answer = client.post("/jobs/night/act/cancel", data={"csrf": csrf})

    assert answer.status_code == 503
    assert not running.orders


def test_a_wrong_number_is_refused(client: Client, running: RunningJob) -> None:
    for number in ("", "0", "-1", "1e3", "9999999", "x"):
        assert post(client, "resize", concurrency=number).status_code == 400, number
    assert not running.orders


def test_an_unknown_action_or_job_is_not_found(client: Client) -> None:
    for path in (
        "/jobs/night/act/kill",
        "/jobs/other/act/pause",
        "/jobs/..%2Fjobs%2Fnight/act/pause",
        "/jobs/%2e%2e/act/pause",
        "/actions/..%2Findex",
        f"/actions/{'0' * 28}",
    ):
        assert client.get(path).status_code == 404, path


def test_a_record_behind_a_link_is_not_shown(site: Site, client: Client, tmp_path: Path) -> None:
    directory = site.settings.actions_path()
    directory.mkdir()
    identifier = "a" * 28
    (tmp_path / "secret.json").write_text("{}")
    (directory / f"{identifier}.json").symlink_to(tmp_path / "secret.json")
    assert client.get(f"/actions/{identifier}").status_code == 404


def test_a_busy_clock_gives_each_action_an_id_of_its_own(site: Site, client: Client) -> None:
    urls = {str(post(client, "pause").url) for _ in range(5)}
    assert len(urls) == 5
    listed: Callable[[str], list[str]] = re.compile(r'href="(/actions/[0-9a-f]{28})"').findall
    assert len(listed(client.get("/jobs/night").text)) == 5
