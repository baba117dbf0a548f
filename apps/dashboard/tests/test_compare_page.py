"""The comparison of variants and jobs: the same numbers as `bench analyze show`."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchflow_analysis import AnalysisOptions, analyse
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, reindex
from litestar import Litestar
from litestar.testing import TestClient
from made_jobs import write_job
from xss_payloads import PAYLOADS, dangers, structure

ADDRESS = "http://127.0.0.1:8642"
TASKS = {f"t/{n:02d}": n for n in range(12)}
OLD = {task: [float(n % 2), 0.25] for task, n in TASKS.items()}
NEW = {task: [1.0 if n % 3 else 0.0, None if n == 5 else 0.5] for task, n in TASKS.items()}

Open = Callable[[], TestClient[Litestar]]


@pytest.fixture
def open_client(settings: DashboardSettings, jobs: Path) -> Iterator[Open]:
    opened: list[TestClient[Litestar]] = []

    def open_() -> TestClient[Litestar]:
        reindex(settings.index_path(), jobs)
        index = Index(settings.index_path(), jobs)
        opened.append(TestClient(create_app(settings, index=index), base_url=ADDRESS).__enter__())
        return opened[-1]

    yield open_
    for client in opened:
        client.__exit__(None, None, None)


def report(jobs: Path, *names: str, baseline: str | None = None) -> dict[str, Any]:
    """Return the analysis of the facts, without the bootstrap."""
    options = AnalysisOptions(baseline=baseline, seed=None)
    return analyse([jobs / name for name in names], options).model_dump(mode="json")


def same(page: dict[str, Any], expected: dict[str, Any]) -> None:
    """Require equal comparisons and variants, except for parts that the page does not have."""
    assert page["comparisons"] == expected["comparisons"]
    for each, other in zip(page["variants"], expected["variants"], strict=True):
        for found in (each, other):
            found["spending"].pop("seconds")
            found.pop("failures")
        assert each == other


def test_variants_of_a_job_have_the_numbers_of_the_analysis(open_client: Open, jobs: Path) -> None:
    write_job(jobs, "night", {"new": NEW, "old": OLD}, baseline="old", pending=2)
    client = open_client()
    page = client.get("/jobs/night/compare").text
    shown = client.get("/api/v1/jobs/night/compare").json()
    assert shown["baseline"] == "old"
    same(shown, report(jobs, "night"))
    [comparison] = shown["comparisons"]
    assert (comparison["variant"], comparison["paired"]["tasks"]) == ("new", 12)
    outcomes = [row["cells"]["new"]["outcome"] for row in shown["tasks"]]
    paired = comparison["paired"]
    counts = tuple(outcomes.count(each) for each in ("win", "loss", "tie"))
    assert counts == (paired["wins"], paired["losses"], paired["ties"])
    assert "▲ win" in page
    assert "1 unscored" in page
    assert f'data-fact="delta">{paired["delta"]:+.3f}<' in page


def test_two_jobs_have_the_numbers_of_the_analysis_and_a_baseline_in_the_url(
    open_client: Open, jobs: Path
) -> None:
    write_job(jobs, "old", {"base": OLD})
    write_job(jobs, "new", {"base": NEW})
    client = open_client()
    for query, baseline in (("with=new", None), ("with=new&baseline=new", "new")):
        shown = client.get(f"/api/v1/jobs/old/compare?{query}").json()
        same(shown, report(jobs, "old", "new", baseline=baseline))
    assert shown["comparisons"][0]["baseline"] == "new"
    assert [each["name"] for each in shown["variants"]] == ["old", "new"]


def test_a_job_of_version_0_8_without_a_record_is_compared_by_its_rollouts(
    open_client: Open, jobs: Path
) -> None:
    for name in ("old", "new"):
        job = write_job(jobs, name, {"base": OLD if name == "old" else NEW})
        for path in sorted(job.glob("facts/*")) + sorted(job.glob("record.db*")):
            path.unlink()
        (job / "facts").rmdir()
        (job / "job.json").write_text(json.dumps({"slots": {}}))
    client = open_client()
    shown = client.get("/api/v1/jobs/old/compare?with=new").json()
    expected = report(jobs, "old", "new")
    assert shown["comparisons"][0]["paired"]["tasks"] == 12
    assert shown["comparisons"] == expected["comparisons"]


def test_a_pair_of_rollouts_leads_to_its_first_different_step(
    open_client: Open, jobs: Path
) -> None:
    write_job(jobs, "night", {"old": {"t/a": [0.0]}, "new": {"t/a": [1.0]}})
    client = open_client()
    page = client.get("/jobs/night/compare").text
    [url] = re.findall(r'href="([^"]+)">first different step', page)
    diff = client.get(url.replace("&amp;", "&")).text
    assert "after 1 equal steps" in diff
    assert "answer of old" in diff
    assert "answer of new" in diff
    assert "did not record a state" in diff


def test_filters_the_order_and_pages_of_the_matrix_are_in_the_url(
    open_client: Open, jobs: Path
) -> None:
    many = {f"t/{n:03d}": [n / 250] for n in range(104)}
    write_job(jobs, "night", {"old": many, "new": {task: [0.25] for task in many}})
    client = open_client()

    def tasks(query: str) -> list[str]:
        page = client.get(f"/jobs/night/compare?{query}").text
        return re.findall(r'data-task="([^"]+)"', page)

    first = tasks("")
    assert (first[0], len(first)) == ("t/000", 100)
    assert len(tasks("after=t%2F099")) == 4
    assert tasks("sort=-delta")[0] == "t/000"
    assert tasks("sort=delta")[0] == "t/103"
    assert tasks("outcome=loss")[0] == "t/063"
    assert "No task has the result tie" not in client.get("/jobs/night/compare").text
    assert len(tasks("outcome=unscored")) == 0
    for query in ("sort=x", "outcome=x", "baseline=nobody", "with=" + "x" * 600):
        assert client.get(f"/jobs/night/compare?{query}").status_code == 400, query


def test_a_job_without_results_and_unknown_jobs_say_so(open_client: Open, jobs: Path) -> None:
    write_job(jobs, "night", {"old": {}}, pending=1)
    write_job(jobs, "alone", {"old": OLD})
    client = open_client()
    assert "No slot of night has a result yet" in client.get("/jobs/night/compare").text
    assert "No job has the name gone" in client.get("/jobs/night/compare?with=gone").text
    assert "One variant alone" in client.get("/jobs/alone/compare").text
    assert client.get("/jobs/gone/compare").status_code == 404
    assert client.get("/api/v1/jobs/gone/compare").status_code == 404


def test_hostile_names_of_tasks_and_variants_stay_text(open_client: Open, jobs: Path) -> None:
    def job(name: str, texts: tuple[str, ...]) -> None:
        tasks = {f"{text}{at}": [1.0, 0.0] for at, text in enumerate(texts)}
        write_job(jobs, name, {f"{texts[0]}a": tasks, f"{texts[0]}b": tasks})

    payloads = tuple(text.replace("\0", "").replace("\ud800", "") for text in PAYLOADS)
    job("plain", tuple("plain" for _ in payloads))
    job("hostile", payloads)
    client = open_client()
    for path in ("/jobs/{}/compare",):
        plain, hostile = (client.get(path.format(name)).text for name in ("plain", "hostile"))
        assert structure(plain) == structure(hostile)
        assert dangers(hostile) == []
