"""Cost and tokens: the numbers of the analysis, and unknown is never 0."""

import re
from pathlib import Path

import pytest
from benchflow_analysis import analyse
from benchflow_dashboard import DashboardSettings, create_app, list_costs
from benchflow_dashboard.index import Index, reindex
from litestar import Litestar
from litestar.testing import TestClient
from made_jobs import Spent, write_job
from made_rollouts import write_rollout
from made_trees import tree_of_climbs
from xss_payloads import PAYLOADS, dangers, structure

ADDRESS = "http://127.0.0.1:8642"
REWARDS = {"t/a": [1.0, 0.0], "t/b": [1.0, None]}


def opened(settings: DashboardSettings) -> TestClient[Litestar]:
    reindex(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir)
    return TestClient(create_app(settings, index=index), base_url=ADDRESS)


def test_variants_cost_what_the_analysis_says(settings: DashboardSettings, jobs: Path) -> None:
    spent = {"old": Spent(cost_usd=0.25), "new": Spent(tokens_in=None, tokens_out=None)}
    write_job(jobs, "night", {"old": REWARDS, "new": REWARDS}, spent=spent)
    report = {each.variant: each for each in analyse([jobs / "night"]).variants}
    with opened(settings) as client:
        shown = client.get("/api/v1/cost?job=night").json()
        page = client.get("/cost?job=night").text
    groups = {group["name"]: group for group in shown["groups"]}
    assert groups.keys() == {"old", "new"}
    for name, group in groups.items():
        spending = report[name].spending
        assert group["cost"] == pytest.approx(spending.cost_usd)
        assert group["cost_per_success"] == pytest.approx(spending.cost_per_pass)
        for field in ("tokens_in", "tokens_out", "unknown_tokens", "unknown_cost"):
            assert group[field] == getattr(spending, field), (name, field)
        assert (group["rollouts"], group["unscored"], group["successes"]) == (4, 1, 2)
    assert groups["old"]["tokens_per_success"] == 220.0
    assert groups["new"]["tokens_per_success"] is None
    assert "4 unknown" in page
    assert re.search(r'data-group="old".*?\$0\.5000<', page, re.DOTALL)


def test_the_groups_add_up_and_the_command_prints_them(
    settings: DashboardSettings, jobs: Path
) -> None:
    write_job(jobs, "night", {"old": REWARDS, "new": REWARDS})
    write_job(jobs, "day", {"old": REWARDS}, spent={"old": Spent(cost_usd=None)})
    with opened(settings) as client:
        for query in ("", "job=night", "job=night&by=task&min=0.5", "by=variant&sort=name"):
            answer = client.get(f"/api/v1/cost?{query}").json()
            assert answer == list_costs(settings, query)
            for field in ("rollouts", "successes", "unscored", "unknown_cost", "tokens_in"):
                parts = sum(group[field] for group in answer["groups"])
                assert parts == answer["total"][field], (query, field)
        jobs_shown = client.get("/api/v1/cost").json()["groups"]
    assert [(group["name"], group["cost"]) for group in jobs_shown] == [
        ("night", 4.0),
        ("day", None),
    ]


def test_attempts_that_do_not_count_are_summed_apart(
    settings: DashboardSettings, jobs: Path
) -> None:
    tree = tree_of_climbs([0, 0])
    tree.status = "running"
    write_rollout(tree, jobs / "night" / "running__01")
    with opened(settings) as client:
        [group] = client.get("/api/v1/cost").json()["groups"]
    assert (group["rollouts"], group["others"], group["other_cost"]) == (0, 1, None)
    assert group["cost"] is None


def test_an_empty_list_and_a_wrong_query_say_so(settings: DashboardSettings) -> None:
    with opened(settings) as client:
        assert "No rollout yet" in client.get("/cost").text
        assert "The job x has no rollout" in client.get("/cost?job=x").text
        for query in ("by=x", "sort=x", "min=x", "min=nan", "min=inf", "job=" + "x" * 600):
            assert client.get(f"/cost?{query}").status_code == 400, query


def test_hostile_names_stay_text(settings: DashboardSettings, jobs: Path) -> None:
    payloads = [text.replace("\0", "").replace("\ud800", "") for text in PAYLOADS]
    write_job(jobs, "plain", {f"plain{n}": {"plain": [1.0]} for n in range(len(payloads))})
    write_job(jobs, "hostile", {f"{n}{text}": {text: [1.0]} for n, text in enumerate(payloads)})
    with opened(settings) as client:
        plain, hostile = (
            client.get(f"/cost?job={name}&by=variant").text for name in ("plain", "hostile")
        )
        tasks = client.get("/cost?job=hostile&by=task").text
    # The option that is selected has another place in the list of jobs.
    assert sorted(structure(plain)) == sorted(structure(hostile))
    assert dangers(hostile) == dangers(tasks) == []
