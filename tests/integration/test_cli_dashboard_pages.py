"""The command line that a page of the dashboard shows prints the data of that page."""

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
from benchflow_contracts import NodeError
from benchflow_contracts.identity import RolloutIdentity
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.notes.store import NotesStore
from benchflow_sandbox_core.owner import HostOwner
from benchflow_sandbox_local import provider
from benchflow_sandbox_local.store.labels import Label, LabelStore
from dashboard_forms import csrf_of
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_inputs, write_rollout
from made_trees import tree_of_all_kinds, tree_of_climbs

Client = TestClient[Litestar]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("site")
    for number in range(3):
        tree = replace(tree_of_climbs([0, 0, 1]), rollout_id=f"plain-{number}")
        write_inputs(write_rollout(tree, home / "jobs" / "night" / tree.rollout_id))
    kinds = replace(tree_of_all_kinds("<i>walnut</i> \x1b[31m"), rollout_id="kinds")
    write_rollout(kinds, home / "jobs" / kinds.rollout_id)
    failed = replace(tree_of_climbs([0]), rollout_id="failed", status="failed")
    failed.error = NodeError(boundary="agent", type="E", message="\x1b[31m<i>died</i>")
    failed.index["n1"].results.clear()
    write_rollout(failed, home / "jobs" / "day" / failed.rollout_id)
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    settings = DashboardSettings(jobs_dir=home / "jobs", index=home / "index.db")
    update_index(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir, settings.notes_path())
    with TestClient(create_app(settings, index=index), base_url="http://127.0.0.1:8642") as client:
        yield client


def shown_command(page: str, marker: str = "data-cli") -> list[str]:
    """Return the words of the command that a page shows."""
    match = re.search(rf"<code {marker}>(.*?)</code>", page, re.DOTALL)
    assert match is not None
    words = shlex.split(html.unescape(match[1]))
    assert words[0] == "bench"
    return words[1:]


def run_json(words: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command of `bench dashboard` with the index of this module."""
    capsys.readouterr()
    assert run([*words[:2], "--json", "--index", str(home / "index.db"), *words[2:]]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "query",
    ["q=result", "q=walnut&status=completed", "q=%22result+1%22&job=night", "q=nowhere", "q=-run"],
)
def test_the_command_of_a_search_prints_its_hits(
    client: Client, home: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    page = client.get(f"/search?{query}").text
    printed = run_json(shown_command(page), home, capsys)
    assert printed == client.get(f"/api/v1/search?{query}").json()
    assert len(re.findall(r"<li [^>]*data-row>", page)) == len(printed["hits"])


@pytest.mark.parametrize("query", ["", "boundary=x&attempts=all", "job=night"])
def test_the_command_of_failures_prints_the_groups(
    client: Client, home: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    page = client.get(f"/failures?{query}").text
    printed = run_json(shown_command(page), home, capsys)
    assert printed == client.get(f"/api/v1/failures?{query}").json()
    assert len(re.findall(r"<tr [^>]*data-row", page)) == len(printed["groups"])
    words = ["dashboard", "failures", "--jobs-dir", str(home / "jobs")]
    assert run([*words, "--index", str(home / "index.db")]) == 0
    captured = capsys.readouterr()
    assert "1 failed, 0 unfinished" in captured.err
    assert "\x1b" not in captured.out


def test_the_command_of_notes_prints_the_labels_and_notes(
    client: Client, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ({"label": "odd"}, {"label": "slow", "node": "n1"}):
        data = {"csrf": csrf_of(client), **form}
        assert client.post("/r/plain-0/labels", data=data).status_code == 200
    data = {"csrf": csrf_of(client), "text": "see \x1b[31m"}
    assert client.post("/r/plain-0/notes", data=data).status_code == 200
    page = client.get("/r/plain-0").text
    printed = run_json(shown_command(page, "data-cli-notes"), home, capsys)
    assert printed == client.get("/api/v1/rollouts/plain-0/notes").json()
    assert [each["label"] for each in printed["labels"]] == ["odd", "slow"]
    page = client.get("/runs?label=odd").text
    printed = run_json(shown_command(page), home, capsys)
    printed["totals"].pop("failed")
    assert printed == client.get("/api/v1/runs?label=odd").json()
    assert [each["id"] for each in printed["runs"]] == ["plain-0"]


@pytest.mark.parametrize(
    "query",
    [
        "job=night",
        "id=plain-0&id=plain-2",
        "label=rare&format=labelled",
        "job=night&format=v1-flat",
    ],
)
def test_the_command_of_an_export_writes_the_rows(
    client: Client,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    query: str,
) -> None:
    NotesStore(home / "index-notes.db").add_label("plain-1", "", "rare", "ana")
    monkeypatch.chdir(tmp_path)
    page = client.get(f"/export?{query}").text
    printed = run_json(shown_command(page), home, capsys)
    link = re.search(r'<a href="(/export/rows[^"]*)"', page)
    assert link is not None
    rows = client.get(html.unescape(link[1])).content
    assert Path(printed["path"]).read_bytes() == rows
    assert len(rows.splitlines()) == printed["trajectories"] > 0


@pytest.fixture
def sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this machine one sandbox of a run that has ended, and no Docker."""
    monkeypatch.setattr(provider, "state_directory", lambda: tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    # In hex, as the identifier of a boot that is over.
    owner = HostOwner(id="0" * 32, renewed_at=1.0, machine="", boot="0" * 32, directory="")
    labels = RolloutIdentity(scope="night", rollout="plain-0").labels()
    label = Label(
        id="left", owner=owner, launcher=None, created_at=1.0, labels=dict(labels), groups=()
    )
    (tmp_path / "boxes").mkdir()
    LabelStore(tmp_path / "boxes").write(label)


def when_all_answered(read: Callable[[], Any]) -> Any:
    """Return the fleet when each provider has answered. The first read imports their SDKs."""
    end = time.monotonic() + 120
    view = read()
    while any(each["state"]["waits_since"] for each in view["providers"]):
        assert time.monotonic() < end, view
        view = read()
    return view


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("sandboxes")
def test_the_command_of_the_fleet_prints_what_sandbox_list_prints(
    client: Client, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = shown_command(client.get("/fleet").text)
    printed = when_all_answered(lambda: run_json(command, home, capsys))
    shown = when_all_answered(lambda: client.get("/api/v1/fleet").json())
    for view in (printed, shown):
        view["directories"].pop("at")
        view["queues"].pop("at")
        for each in view["providers"]:
            each["state"].pop("at")
    assert printed == shown
    by_name = {each["provider"]: each["state"] for each in printed["providers"]}
    assert run(["sandbox", "list", "--sandbox", "local", "--json"]) == 0
    assert by_name["local"]["value"] == json.loads(capsys.readouterr().out)
    assert [each["id"] for each in by_name["local"]["value"]] == ["left"]
    assert by_name["docker"]["value"] is None
    assert "Docker" in by_name["docker"]["problem"]
    assert run([*command[:2], "--index", str(home / "index.db"), *command[2:]]) == 0
    captured = capsys.readouterr()
    assert "left" in captured.out
    assert "docker: " in captured.err


def test_the_command_without_json_prints_the_text_of_each_hit(
    client: Client, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dashboard", "search", "walnut", "--jobs-dir", str(home / "jobs")]
    assert run([*words, "--index", str(home / "index.db")]) == 0
    captured = capsys.readouterr()
    assert "kinds" in captured.out
    assert "\x1b[31m" not in captured.out
    assert "matches" in captured.err
