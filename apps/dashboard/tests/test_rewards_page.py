"""Rewards by space and granularity: equal to `rewards.jsonl`, with unscored verdicts apart."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from benchflow_contracts import RolloutRecord
from benchflow_dashboard import DashboardSettings, create_app, list_rewards
from benchflow_dashboard.index import Index, reindex, update_index
from benchflow_dashboard.index.database import IndexReaders
from benchflow_dashboard.index.reward_sums import add_verdict
from litestar import Litestar
from litestar.testing import TestClient
from made_jobs import write_job
from made_rollouts import write_rollout
from made_trees import random_tree
from xss_payloads import PAYLOADS, dangers, structure

ADDRESS = "http://127.0.0.1:8642"
REWARDS = {
    "old": {"t/a": [1.0, 0.0], "t/b": [0.25, None]},
    "new": {"t/a": [1.0, 1.0], "t/b": [None, None]},
}


def opened(settings: DashboardSettings) -> TestClient[Litestar]:
    update_index(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir)
    return TestClient(create_app(settings, index=index), base_url=ADDRESS)


def from_files(job: Path, keep: Callable[[dict[str, Any]], bool]) -> dict[str, list[float]]:
    """Return the mean signal of each rollout by variant, from `rewards.jsonl`."""
    found: dict[str, list[float]] = defaultdict(list)
    for directory in sorted(job.glob("night-*")):
        record = RolloutRecord.model_validate_json((directory / "result.json").read_text())
        lines = map(json.loads, (directory / "rewards.jsonl").read_text().splitlines())
        values = [line["value"] for line in lines if keep(line) and line["value"] is not None]
        if values:
            found[str(record.slot).split("/")[0]].append(fmean(values))
    return found


def test_the_matrix_and_the_lines_agree_with_the_rewards_of_the_rollouts(
    settings: DashboardSettings, jobs: Path
) -> None:
    job = write_job(jobs, "night", REWARDS)
    with opened(settings) as client:
        view = client.get("/api/v1/rewards?job=night").json()
    rows = {(row["space"], row["granularity"]): row["cells"] for row in view["rows"]}
    assert list(rows) == [("output", "terminal"), ("action", "step"), ("reasoning", "terminal")]
    for (space, granularity), cells in rows.items():
        expected = from_files(
            job,
            lambda line: (line["space"], line["granularity"]) == (space, granularity),  # noqa: B023
        )
        for variant, values in expected.items():
            assert cells[variant]["mean"] == pytest.approx(fmean(values))
            assert cells[variant]["deviation"] == pytest.approx(stdev(values))
            assert cells[variant]["rollouts"] == sum(cells[variant]["bins"]) == len(values)
    assert rows["output", "terminal"]["new"]["unscored"] == 2
    [lines] = view["lines"]
    assert [row["step"] for row in lines["steps"]] == [0, 1]
    for row in lines["steps"]:
        expected = from_files(job, lambda line: line["step_index"] == row["step"])  # noqa: B023
        for variant, values in expected.items():
            assert row["cells"][variant]["mean"] == pytest.approx(fmean(values))


def test_a_page_without_a_script_has_every_number_and_unscored_is_not_0(
    settings: DashboardSettings, jobs: Path
) -> None:
    write_job(jobs, "night", {"old": {"t/a": [None, None]}, "new": {"t/a": [0.5, 1.0]}})
    with opened(settings) as client:
        page = client.get("/rewards?job=night").text
    [row] = re.findall(r'data-space="output".*?</tr>', page, re.DOTALL)
    new, old = re.findall(r"<td>(.*?)</td>", row.split("</th>", 1)[1], re.DOTALL)[1:]
    assert "0.75" in new
    assert "±0.35" in new
    assert "2 unscored" in old
    assert "0.00" not in old
    assert 'data-mean="0.5"' in page
    assert page.count("data-lines") == 1
    assert "uplot-1.6.32.min.js" in page
    assert "<details open>" in page


def test_the_sums_follow_each_change_and_equal_a_new_index(
    settings: DashboardSettings, jobs: Path, tmp_path: Path
) -> None:
    write_job(jobs, "night", REWARDS)
    for number in range(6):
        tree = random_tree(30, seed=number)
        tree.rollout_id = f"made__{number}"
        tree.status = "running" if number < 3 else "completed"
        write_rollout(tree, jobs / "day" / tree.rollout_id)
    update_index(settings.index_path(), jobs)
    before = list_rewards(settings, "job=day")
    for number in range(3):
        directory = jobs / "day" / f"made__{number}"
        source = jobs / "day" / f"made__{number + 3}" / "result.json"
        record = RolloutRecord.model_validate_json(source.read_text())
        changed = record.model_copy(update={"rollout_id": directory.name})
        (directory / "result.json").write_text(changed.model_dump_json())
    for each in sorted((jobs / "day" / "made__5").iterdir()):
        each.unlink()
    (jobs / "day" / "made__5").rmdir()
    after = list_rewards(settings, "job=day")
    [[old]], [[new]] = ([[*row["cells"].values()] for row in v["rows"]] for v in (before, after))
    assert (old["rollouts"], new["rollouts"]) == (3, 5)
    reindex(tmp_path / "fresh.db", jobs)
    kept, fresh = (cells(path) for path in (settings.index_path(), tmp_path / "fresh.db"))
    assert kept.keys() == fresh.keys()
    for key, sums in fresh.items():
        assert kept[key] == pytest.approx(sums, abs=1e-9), key


def cells(path: Path) -> dict[tuple[Any, ...], list[float]]:
    readers = IndexReaders(path)
    with readers.session() as session:
        rows = session.rows("SELECT * FROM reward_cells")
    readers.close()
    return {tuple(row[:5]): list(row[5:]) for row in rows}


@pytest.mark.parametrize(
    "value", ["NaN", "1", float("inf"), -float("inf"), 1e308, 10**400, True, [1], {}]
)
def test_a_value_that_is_not_a_usual_number_is_unscored(value: object) -> None:
    sums: dict[str, list[float]] = {}
    add_verdict(sums, {"reward": value, "events": [{"value": value, "step_id": {}}, 1]}, {})
    assert sums == {"output terminal -1": [0, 0.0, 2]}


def test_a_tampered_verdict_is_unscored_and_a_wrong_space_is_left_out() -> None:
    sums: dict[str, list[float]] = {}
    meta = {"integrity": {"grade": "tampered"}}
    add_verdict(sums, {"reward": 1.0, "meta": meta, "events": [{"value": 1.0}]}, {})
    add_verdict(sums, {"reward": 1.0, "space": "a b", "granularity": "c"}, {})
    assert sums == {"output terminal -1": [0, 0.0, 1]}


def test_an_empty_page_a_filter_and_a_wrong_query_say_so(
    settings: DashboardSettings, jobs: Path
) -> None:
    with opened(settings) as client:
        assert "No verdict yet" in client.get("/rewards").text
        assert "has a verdict here" in client.get("/rewards?job=x").text
        for query in ("space=x", "job=" + "x" * 600):
            assert client.get(f"/rewards?{query}").status_code == 400
    write_job(jobs, "night", {"old": {"t/a": [1.0]}})
    with opened(settings) as client:
        assert client.get("/api/v1/rewards?space=memory").json()["rows"] == []
        [row] = client.get("/api/v1/rewards?space=action").json()["rows"]
        assert list(row["cells"]) == ["night"]


def test_hostile_names_of_variants_stay_text(settings: DashboardSettings, jobs: Path) -> None:
    payloads = [text.replace("\0", "").replace("\ud800", "") for text in PAYLOADS]
    write_job(jobs, "plain", {f"plain{n}": {"t": [1.0]} for n in range(len(payloads))})
    write_job(jobs, "hostile", {f"{n}{text}": {"t": [1.0]} for n, text in enumerate(payloads)})
    with opened(settings) as client:
        plain, hostile = (client.get(f"/rewards?job={each}").text for each in ("plain", "hostile"))
    assert f"{len(payloads) - 6} more variants" in hostile
    assert sorted(structure(plain)) == sorted(structure(hostile))
    assert dangers(hostile) == []
