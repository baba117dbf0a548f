"""Exports of selections: by filter, by label and by id; one rollout at a time, and complete."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchflow_contracts import RolloutTree, UsageError
from benchflow_dashboard import DashboardSettings, create_app, export_runs
from benchflow_dashboard.exports import selection as selections
from benchflow_dashboard.exports.selection import Selection
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.notes.store import NotesStore
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_inputs, write_rollout
from made_trees import tree_of_all_kinds, tree_of_climbs
from xss_payloads import CANARY, PAYLOADS, dangers, structure

Client = TestClient[Litestar]


def write(jobs: Path, job: str, tree: RolloutTree, finished_at: float = 1_000.0) -> Path:
    directory = jobs / job / tree.rollout_id
    return write_inputs(write_rollout(tree, directory, finished_at=finished_at))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DashboardSettings:
    home = tmp_path_factory.mktemp("site")
    jobs = home / "jobs"
    for number in range(7):
        tree = replace(tree_of_climbs([0, 0, 1]), rollout_id=f"plain-{number}")
        write(jobs, "night", tree, finished_at=1_000.0 + number)
    write(jobs, "other", replace(tree_of_all_kinds("<b>kinds</b>"), rollout_id="kinds"))
    running = replace(tree_of_climbs([0, 0]), rollout_id="running", status="running")
    write(jobs, "other", running)
    damaged = write(jobs, "broken", replace(tree_of_climbs([0]), rollout_id="damaged"))
    (damaged / "config.json").write_text("{}")
    moved = write(jobs, "moved", replace(tree_of_climbs([0]), rollout_id="moved"))
    text = (moved / "result.json").read_text()
    (moved / "result.json").write_text(text.replace('"moved"', '"../night/plain-0"'))
    settings = DashboardSettings(jobs_dir=jobs, index=home / "index.db")
    store = NotesStore(settings.notes_path())
    store.add_label("kinds", "", "odd", "ana")
    store.add_label("kinds", "n4", "died here", "ben")
    store.add_note("plain-1", "", "no label, but a note", "ana")
    update_index(settings.index_path(), jobs)
    return settings


@pytest.fixture(scope="module")
def index(settings: DashboardSettings) -> Iterator[Index]:
    index = Index(settings.index_path(), settings.jobs_dir, settings.notes_path())
    yield index
    index.close()


@pytest.fixture(scope="module")
def client(settings: DashboardSettings, index: Index) -> Iterator[Client]:
    with TestClient(create_app(settings, index=index), base_url="http://127.0.0.1:8642") as client:
        yield client


def rows(client: Client, query: str) -> list[dict[str, object]]:
    answer = client.get(f"/export/rows?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def rollouts_of(found: list[dict[str, object]]) -> list[str]:
    return list(dict.fromkeys(row["info"]["rollout_id"] for row in found))  # type: ignore[index]


def test_a_filter_exports_each_leaf_of_its_runs_in_the_order_of_the_list(client: Client) -> None:
    found = rows(client, "job=night&sort=when")
    assert rollouts_of(found) == [f"plain-{number}" for number in range(7)]
    assert len(found) == 14
    assert {row["reward"] for row in found} == {0.5, 0.75}


def test_ids_export_those_runs_and_nothing_else(client: Client) -> None:
    assert rollouts_of(rows(client, "id=plain-3&id=plain-0&id=plain-3")) == ["plain-3", "plain-0"]
    assert client.get("/export/rows?id=plain-3&id=none").status_code == 400
    assert client.get("/export/rows?id=plain").status_code == 400


def test_the_rows_are_those_of_the_trainer_format(client: Client, settings, tmp_path) -> None:
    for name in ("verifiers", "sft", "v1-graph", "labelled"):
        target = tmp_path / f"{name}.jsonl"
        counts = export_runs(settings, "job=night", name, target)
        answer = client.get(f"/export/rows?job=night&format={name}")
        assert answer.content == target.read_bytes()
        assert counts["trajectories"] == (2 if name == "labelled" else 14)


def test_a_labelled_rollout_has_a_row_for_each_leaf_also_without_a_score(client: Client) -> None:
    found = rows(client, "label=odd&format=labelled")
    labels = {row["info"]["leaf"]: row["info"]["labels"] for row in found}  # type: ignore[index]
    assert {leaf: [each["label"] for each in given] for leaf, given in labels.items()} == {
        "n5": ["odd"],
        "n3": ["odd"],
        "n4": ["odd", "died here"],
    }
    assert sorted(str(row["reward"]) for row in found) == ["0.5", "None", "None"]
    # The rest of the job has neither a label nor a note.
    noted = rows(client, "job=night&format=labelled")
    assert rollouts_of(noted) == ["plain-1"]
    assert noted[0]["info"]["notes"][0]["text"] == "no label, but a note"  # type: ignore[index]


def test_a_run_that_has_not_ended_has_no_rows(client: Client) -> None:
    assert rollouts_of(rows(client, "job=other")) == ["kinds"]


@pytest.mark.parametrize("job", ["broken", "moved"])
def test_a_damaged_rollout_fails_the_export_by_name_and_leaves_no_file(
    client: Client, settings: DashboardSettings, job: str
) -> None:
    answer = client.get(f"/export/rows?job={job}")
    assert answer.status_code == 422
    assert "damaged record" in answer.text or "names another rollout" in answer.text
    left = [path.name for path in settings.index_path().parent.iterdir()]
    assert not [name for name in left if name.startswith("export-")]


def test_the_walk_over_batches_yields_each_run_once(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selections, "_BATCH", 3)
    found = [entry.id for entry in Selection.of_query("job=night").entries(index)]
    assert found == [f"plain-{number}" for number in reversed(range(7))]


def test_rollouts_are_read_one_at_a_time(index: Index) -> None:
    reader = Selection.of_query("job=night&sort=when").finished(index)
    first = next(reader)
    for number in range(1, 7):
        (index.jobs_dir / "night" / f"plain-{number}" / "prompts.json").write_text('["later"]')
    assert first.instruction == "Do it."
    assert {each.instruction for each in reader} == {"later"}
    for number in range(1, 7):
        write_inputs(index.jobs_dir / "night" / f"plain-{number}")


def test_the_page_has_the_count_the_formats_and_the_link(client: Client) -> None:
    page = client.get("/export?job=night&format=sft").text
    assert "7 runs" in page
    assert 'href="/export/rows?job=night&amp;format=sft" download' in page
    assert '<option value="labelled">' in page
    picked = client.get("/export?id=plain-1&id=plain-2").text
    assert "2 runs" in picked
    assert '<input type="hidden" name="id" value="plain-1">' in picked
    assert "No run is selected" in client.get("/export?job=none").text
    assert client.get("/export?format=harbor").status_code == 400


def test_each_row_of_the_list_can_be_selected_without_a_script(client: Client) -> None:
    page = client.get("/runs?job=night").text
    assert page.count('<input type="checkbox" form="pick" name="id"') == 7
    assert '<form class="bar" id="pick" method="get" action="/export">' in page
    assert 'href="/export?job=night"' in page


def test_a_selection_has_a_bounded_number_of_ids() -> None:
    with pytest.raises(UsageError, match="501 runs are selected"):
        Selection.of([("id", str(number)) for number in range(501)])


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_hostile_selection_is_shown_as_text(client: Client, payload: str) -> None:
    text = payload.replace("\ud800", "")
    page = client.get("/export", params={"job": text, "q": text})
    assert page.status_code == 200
    plain = client.get("/export", params={"job": CANARY, "q": CANARY})
    assert dangers(page.text) == []
    assert structure(page.text) == structure(plain.text)
