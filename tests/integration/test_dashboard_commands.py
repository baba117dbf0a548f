"""Each page names the command that prints its data, and the command prints the same numbers."""

import asyncio
import html
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import EnvState
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, reindex
from benchflow_dashboard.monitor.assembler import Assembler
from benchflow_dashboard.monitor.config import MonitorConfig
from benchflow_dashboard.monitor.scoring import OnlineScorer
from benchflow_dashboard.pages.format import metric
from litestar import Litestar
from litestar.testing import TestClient
from made_jobs import Spent, write_job
from made_rollouts import table, write_rollout
from made_trees import tree_of_climbs

ADDRESS = "http://127.0.0.1:8642"
OLD = {f"t/{n}": [float(n % 2), 0.25] for n in range(6)}
NEW = {f"t/{n}": [1.0 if n % 3 else 0.0, None if n == 5 else 0.5] for n in range(6)}
SPENT = {"old": Spent(), "new": Spent(tokens_in=None, tokens_out=None, cost_usd=None)}

Print = Callable[[str], Any]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DashboardSettings:
    """Two jobs with a record, and an index of them."""
    home = tmp_path_factory.mktemp("dashboard")
    jobs = home / "jobs"
    night = write_job(jobs, "night", {"old": OLD, "new": NEW}, baseline="old", spent=SPENT)
    write_job(jobs, "day", {"old": OLD})
    for rollout in night.glob("night-*"):
        (rollout / "verifier").mkdir()
        (rollout / "verifier" / "test-stdout.txt").write_text("ended")
    states = {
        name: EnvState(databases={"gcal.db": {"events": table(row)}})
        for name, row in (("n1", (1, "old")), ("n2", (2, "new")))
    }
    tree = replace(tree_of_climbs([0, 0]), rollout_id="states__01")
    write_rollout(tree, jobs / "states__01", states)
    reindex(home / "index.db", jobs)
    return DashboardSettings(jobs_dir=jobs, index=home / "index.db")


@pytest.fixture(scope="module")
def client(settings: DashboardSettings) -> Iterator[TestClient[Litestar]]:
    index = Index(settings.index_path(), settings.jobs_dir)
    with TestClient(create_app(settings, index=index), base_url=ADDRESS) as client:
        yield client


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Print:
    """Run the command that a page names, with `--json`, and return its output."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def print_(page: str, attribute: str = "data-cli") -> Any:
        [line] = re.findall(rf"<code {attribute}>([^<]*)</code>", page)
        words = shlex.split(html.unescape(line))
        assert words[0] == "bench"
        capsys.readouterr()
        code = run([*words[1:], "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return print_


@pytest.mark.parametrize("query", ["", "job=night&status=unscored", "sort=reward&task=t%2F1"])
def test_runs(client, printed: Print, query: str) -> None:
    found = printed(client.get(f"/runs?{query}").text)
    found["totals"].pop("failed")
    shown = client.get(f"/api/v1/runs?{query}").json()
    for each in (*found["runs"], *shown["runs"]):
        each.pop("key")
    for place in ("next", "previous"):
        assert (found.pop(place) is None) == (shown.pop(place) is None)
    assert found == shown


def test_jobs_and_a_job(client, printed: Print) -> None:
    found = {each["job"]: each for each in printed(client.get("/jobs").text)}
    for line in client.get("/api/v1/jobs").json():
        job = found[line["job"]["name"]]
        assert job["finished"] == line["finished"]
        assert job["mean_reward"] == pytest.approx(line["totals"]["mean"])
    found = printed(client.get("/jobs/night").text)
    shown = client.get("/api/v1/jobs/night").json()
    assert found["scored"] == shown["totals"]["scored"]
    assert found["mean_reward"] == pytest.approx(shown["totals"]["mean"])
    assert found["stderr"] == pytest.approx(shown["totals"]["stderr"])
    assert found["errors"] == shown["totals"]["by_boundary"]


@pytest.mark.parametrize("path", ["night/compare", "night/compare?with=day&baseline=day%3Aold"])
def test_a_comparison(client, printed: Print, path: str) -> None:
    found = printed(client.get(f"/jobs/{path}").text)
    shown = client.get(f"/api/v1/jobs/{path}").json()
    for each in found["comparisons"]:
        each["paired"]["bootstrap"] = None
    assert found["comparisons"] == shown["comparisons"]
    for name in ("name", "trials", "scored", "unscored", "tampered", "mean", "pass_at_k"):
        assert [v[name] for v in found["variants"]] == [v[name] for v in shown["variants"]]


@pytest.mark.parametrize("query", ["", "job=night", "job=night&by=task&min=0.5&sort=name"])
def test_costs(client, printed: Print, query: str) -> None:
    assert printed(client.get(f"/cost?{query}").text) == client.get(f"/api/v1/cost?{query}").json()


@pytest.mark.parametrize("query", ["", "job=night", "job=night&space=action"])
def test_rewards(client, printed: Print, query: str) -> None:
    found = printed(client.get(f"/rewards?{query}").text)
    assert found == client.get(f"/api/v1/rewards?{query}").json()
    assert found["rows"]


def test_evidence_of_a_rollout(client, printed: Print, settings: DashboardSettings) -> None:
    rollout = sorted((settings.jobs_dir / "night").glob("night-*"))[0].name
    page = client.get(f"/r/{rollout}?sel=n2&tab=evidence").text
    found = printed(page, "data-cli-node")
    for verdict in found["verdicts"]:
        assert f"<td>grading of {verdict['name']}</td>" in page
        assert f'<td class="wide">{verdict["grading"]}</td>' in page
    ids = re.findall(r"/evidence/([0-9a-f]{24})", page)
    assert ids == [file["id"] for file in found["files"]]
    names = re.findall(r"data-part>(verifier/[^<]+)</a>", page)
    assert names == [file["path"] for file in found["files"]] == ["verifier/test-stdout.txt"]


def test_the_tree_and_a_node(client, printed: Print, settings: DashboardSettings) -> None:
    first = sorted((settings.jobs_dir / "night").glob("night-*"))[0].name
    page = client.get(f"/r/{first}?sel=n2").text
    tree, node = printed(page), printed(page, "data-cli-node")
    assert tree["rollout_id"] == first
    assert node["id"] == "n2"
    [shown] = re.findall(r'data-fact="value">([^<]*)<', page)
    assert float(shown) == node["results"]["reward"]["reward"]


def test_a_difference_of_states(client, printed: Print) -> None:
    page = client.get("/r/states__01/diff?a=n1&b=n2").text
    found = printed(page)
    facts = dict(re.findall(r'data-fact="([a-z]+)">([^<]*)<', page))
    [tables] = found["databases"].values()
    rows = sum(len(t["removed"]) + len(t["added"]) + len(t["changed"]) for t in tables.values())
    assert facts["rows"] == str(rows) == "2"
    assert facts["tables"] == str(len(tables))
    assert f"after {found['shared_steps']} equal steps" in page


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[TestClient[Litestar]]:
    """A dashboard with one production rollout that has ended."""
    now = time.time() - 60
    shared = {"rollout": "talk-1", "resource": {"service": "shop", "version": "1.8"}}
    step = {"kind": "step", "index": 0, "ts": now, "started_at": now - 2, "message": "bought"}
    records = [{**shared, **step}, {**shared, "kind": "ended", "index": 1, "ts": now + 1}]
    database = tmp_path / "monitor.db"
    (tmp_path / "jobs").mkdir()
    settings = DashboardSettings(
        jobs_dir=tmp_path / "jobs", index=tmp_path / "index.db", monitor=database
    )
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        answer = client.post("/v1/benchflow/records", json={"records": records})
        assert answer.json()["refused"] == []
        later = time.time() + 40
        scorer = OnlineScorer(MonitorConfig())
        assembler = Assembler(database, MonitorConfig(), scorer, clock=lambda: later)
        asyncio.run(assembler.assemble())
        assembler.close()
        yield client


def test_production_its_rollouts_and_alerts(
    monitored: TestClient[Litestar], printed: Print
) -> None:
    page = monitored.get("/monitor").text
    found = printed(page)
    assert f"<li>{found['closed']} rollouts</li>" in page
    assert found["closed"] == 1
    for chart in found["charts"]:
        for line in chart["lines"]:
            shown = f"<b>{metric(line['whole']['mean'], chart['metric'])}</b>"
            assert shown in page or chart["metric"] == "rollouts"
    assert [row["id"] for row in found["rollouts"]] == re.findall(
        r'href="/monitor/r/([^"]+)"', page
    )
    page = monitored.get("/monitor/r/talk-1").text
    one = printed(page)
    assert one["id"] == "talk-1"
    assert one["version"] in page
    page = monitored.get("/alerts").text
    assert printed(page) == []
    assert "data-row" not in page
