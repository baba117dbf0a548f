"""The page of failures: groups, counts, times, links, and the words of the command line."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchflow_contracts import NodeError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, update_index
from benchflow_jobs import job_view, read_job
from benchflow_store import triage
from litestar import Litestar
from litestar.testing import TestClient
from made_jobs import write_job
from made_rollouts import write_rollout
from made_trees import tree_of_climbs
from xss_payloads import CANARY, PAYLOADS, dangers, structure

Client = TestClient[Litestar]


def write_failed(directory: Path, error: NodeError | None, finished_at: float) -> None:
    tree = replace(tree_of_climbs([0]), rollout_id=directory.name, status="failed", error=error)
    tree.index["n1"].results.clear()
    write_rollout(tree, directory, finished_at=finished_at)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jobs = tmp_path_factory.mktemp("site") / "jobs"
    write_job(jobs, "night", {"base": {"a": [1.0, None], "b": [None, None], "c": [0.0]}})
    (jobs / "night" / "summary.json").write_text(json.dumps({"planned": 5}))
    for number in range(3):
        error = NodeError(boundary="agent", type="ModelError", message=f"404 after {number} s")
        write_failed(jobs / "day" / f"agent__{number}", error, finished_at=2_000.0 + number)
    write_failed(jobs / "day" / "silent__1", None, finished_at=3_000.0)
    for number, payload in enumerate((f"plain {CANARY}", *PAYLOADS)):
        text = payload.replace("\ud800", "")
        error = NodeError(boundary=text, type=text, message=text)
        write_failed(jobs / f"job-{number:02}" / f"hostile__{number}", error, finished_at=1.0)
    return jobs


@pytest.fixture(scope="module")
def client(jobs: Path) -> Iterator[Client]:
    settings = DashboardSettings(jobs_dir=jobs, index=jobs.parent / "index.db")
    update_index(settings.index_path(), jobs)
    index = Index(settings.index_path(), jobs)
    with TestClient(create_app(settings, index=index), base_url="http://127.0.0.1:8642") as client:
        yield client


def test_errors_that_differ_in_numbers_are_one_group(client: Client) -> None:
    view = client.get("/api/v1/failures?job=day").json()
    groups = {group["boundary"]: group for group in view["groups"]}
    agent = groups["agent"]
    assert (agent["runs"], agent["tasks"], agent["error_type"]) == (3, 1, "ModelError")
    assert (agent["first"], agent["last"]) == (2_000.0, 2_002.0)
    assert (agent["run"], agent["example"]) == ("agent__2", "agent: 404 after 2 s")
    assert groups[""]["runs"] == 1
    assert sum(group["runs"] for group in view["groups"]) == view["failed"] == 4


def test_each_group_links_to_exactly_its_runs(client: Client) -> None:
    page = client.get("/failures?job=day").text
    urls = re.findall(r'<a href="(/runs\?[^"]*)" aria-label="(\d+) runs with', page)
    assert [count for _, count in urls] == ["3", "1"]
    for url, count in urls:
        answer = client.get("/api/v1" + url.replace("&amp;", "&")).json()
        assert len(answer["runs"]) == int(count)


def test_the_groups_agree_with_eval_show_and_job_status(client: Client, jobs: Path) -> None:
    report, status = read_job(jobs / "night"), job_view(jobs / "night")
    view = client.get("/api/v1/failures?job=night&attempts=all").json()
    assert view["by_boundary"] == report.errors == {"reward": 3}
    [group] = view["groups"]
    [error] = status.errors
    assert error.startswith(f"{group['boundary']} {group['error_type']}: ")
    assert group["runs"] == status.errors[error]
    assert group["example"] in {triage(record).text for record in report.records}


def test_filters_are_links_and_the_status_of_the_url_does_not_count(client: Client) -> None:
    page = client.get("/failures?job=day&status=completed&boundary=agent").text
    assert 'href="/failures?job=day" aria-label="Remove the filter boundary' in page
    assert "3 failed" in page
    assert "bench dashboard failures &#39;job=day&amp;boundary=agent&#39;" in page
    assert "No failure matches 1 filter" in client.get("/failures?job=none").text
    assert client.get("/failures?sort=x").status_code == 400


@pytest.mark.parametrize("number", range(1, len(PAYLOADS) + 1))
def test_no_payload_leaves_its_text(client: Client, number: int) -> None:
    plain = client.get("/failures?job=job-00").text
    text = client.get(f"/failures?job=job-{number:02}").text
    assert dangers(text) == []
    assert sorted(structure(text)) == sorted(structure(plain))


def test_without_failures_the_page_says_what_it_lists(tmp_path: Path) -> None:
    settings = DashboardSettings(jobs_dir=tmp_path / "empty", index=tmp_path / "index.db")
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8642") as client:
        assert "No rollout failed" in client.get("/failures").text
        assert json.loads(client.get("/api/v1/failures").text)["groups"] == []
