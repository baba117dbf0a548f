"""Labels and notes: written with a role and an audit row, found by the list, never in a job."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import update_index
from benchflow_dashboard.notes.store import LONGEST_NOTE, MOST_LABELS, NotesStore
from benchflow_dashboard.security import access
from benchflow_dashboard.security.users import add_user
from benchflow_dashboard.settings import data_directory
from dashboard_forms import csrf_of
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import tree_of_climbs
from xss_payloads import CANARY, PAYLOADS, dangers, structure

Client = TestClient[Litestar]
ADDRESS = "http://127.0.0.1:8642"


@pytest.fixture
def site(settings: DashboardSettings, jobs: Path) -> DashboardSettings:
    for name in ("one", "two"):
        write_rollout(replace(tree_of_climbs([0, 1]), rollout_id=name), jobs / "night" / name)
    update_index(settings.index_path(), jobs)
    return settings


@pytest.fixture
def client(site: DashboardSettings) -> Iterator[Client]:
    with TestClient(create_app(site), base_url=ADDRESS) as client:
        yield client


def post(client: Client, url: str, **form: str) -> int:
    data = {"csrf": csrf_of(client), **form}
    return client.post(url, data=data, follow_redirects=False).status_code


def files_below(directory: Path) -> list[tuple[str, int]]:
    found = [Path(place, name) for place, _, names in os.walk(directory) for name in names]
    return sorted((str(path), path.stat().st_mtime_ns) for path in found)


def test_a_label_filters_the_list_and_stands_at_its_runs(client: Client, jobs: Path) -> None:
    before = files_below(jobs)
    assert post(client, "/r/one/labels", label=" wrong  tool ") == 303
    assert post(client, "/r/one/labels", label="slow", node="n1") == 303
    assert post(client, "/r/two/labels", label="slow") == 303
    page = client.get("/runs?label=wrong+tool").text
    assert 'href="/r/one?' in page
    assert 'href="/r/two?' not in page
    assert "1 of 1" in page
    assert '<option value="wrong tool" selected>' in page
    answer = client.get("/api/v1/runs?label=slow").json()
    assert answer["totals"]["n"] == 2
    assert answer["labels"] == {"one": ["slow", "wrong tool"], "two": ["slow"]}
    assert client.get("/api/v1/runs?label=none").json()["runs"] == []
    assert files_below(jobs) == before


def test_a_note_stands_at_its_node_with_its_author_until_it_is_deleted(client: Client) -> None:
    assert post(client, "/r/one/notes", text="look\r\nhere", node="n2", back="/r/one?sel=n2") == 303
    page = client.get("/r/one?sel=n2").text
    assert "look\nhere" in page
    assert "local ·" in page
    [note] = client.get("/api/v1/rollouts/one/notes").json()["notes"]
    assert (note["node"], note["text"], note["author"]) == ("n2", "look\nhere", "local")
    assert post(client, "/r/two/notes", delete=str(note["id"])) == 303
    assert client.get("/api/v1/rollouts/one/notes").json()["notes"]
    assert post(client, "/r/one/notes", delete=str(note["id"])) == 303
    assert client.get("/api/v1/rollouts/one/notes").json()["notes"] == []


def test_a_deleted_label_is_gone_and_the_rest_stays(client: Client) -> None:
    for node in ("", "n1"):
        post(client, "/r/one/labels", label="good", node=node)
    assert post(client, "/r/one/labels", label="good", node="n1", delete="1") == 303
    labels = client.get("/api/v1/rollouts/one/notes").json()["labels"]
    assert [(each["node"], each["label"]) for each in labels] == [("", "good")]


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("labels", {"label": ""}),
        ("labels", {"label": "x" * 41}),
        ("labels", {"label": "<b>"}),
        ("labels", {"label": "good", "node": "n99"}),
        ("notes", {"text": " \n"}),
        ("notes", {"text": "x" * (LONGEST_NOTE + 1)}),
        ("notes", {"delete": "1; DROP TABLE notes"}),
    ],
)
def test_a_wrong_label_or_note_is_refused_and_not_stored(
    client: Client, path: str, form: dict[str, str]
) -> None:
    assert post(client, f"/r/one/{path}", **form) == 400
    found = client.get("/api/v1/rollouts/one/notes").json()
    assert found == {"rollout": "one", "labels": [], "notes": []}


def test_a_form_leads_back_to_this_dashboard_only(client: Client) -> None:
    data = {"csrf": csrf_of(client), "label": "good", "back": "//elsewhere/"}
    answer = client.post("/r/one/labels", data=data, follow_redirects=False)
    assert answer.headers["location"] == "/"
    assert client.post("/r/one/labels", data={"label": "x"}).status_code == 403
    assert post(client, "/r/none/labels", label="good") == 404


def test_a_viewer_is_refused_and_an_operator_is_audited(
    site: DashboardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "remote_address", lambda *_: "203.0.113.9")  # behind a proxy
    users = site.index_path().with_name("users.toml")
    tokens = {role: add_user(users, role, role) for role in ("viewer", "operator")}  # type: ignore[arg-type]
    settings = site.model_copy(update={"users": users})
    for role, status in (("viewer", 403), ("operator", 303)):
        with TestClient(create_app(settings), base_url=ADDRESS) as client:
            client.post("/login", data={"token": tokens[role]}, follow_redirects=False)
            for path, form in (("labels", {"label": "seen"}), ("notes", {"text": "read"})):
                assert post(client, f"/r/one/{path}", **form) == status
            page = client.get("/r/one").text
            assert ("Add label" in page) == (role == "operator")
            assert ("needs the role operator" in page) or role == "operator"
    lines = [json.loads(line) for line in users.with_name("audit.jsonl").read_text().splitlines()]
    acts = [(each["user"], each["action"], each["target"]) for each in lines]
    assert ("operator", "label-add seen", "one:") in acts
    assert ("operator", "note-add", "one:") in acts
    assert {each["remote"] for each in lines} == {"203.0.113.9"}


def test_no_payload_in_a_note_leaves_its_text(client: Client) -> None:
    def page_with(text: str) -> str:
        post(client, "/r/one/notes", text=text)
        page = client.get("/r/one").text
        [note] = client.get("/api/v1/rollouts/one/notes").json()["notes"]
        post(client, "/r/one/notes", delete=str(note["id"]))
        return page

    plain = structure(page_with(f"plain {CANARY}"))
    for payload in PAYLOADS:
        page = page_with(payload.replace("\ud800", ""))
        assert dangers(page) == []
        assert structure(page) == plain


def test_a_rollout_has_a_bounded_number_of_labels(tmp_path: Path) -> None:
    store = NotesStore(tmp_path / "notes.db")
    for number in range(MOST_LABELS):
        store.add_label("r", "", f"label {number}", "ana")
    with pytest.raises(UsageError, match="32 labels already"):
        store.add_label("r", "", "one more", "ana")


@pytest.mark.parametrize("content", ["", "no database at all, but some text" * 100])
def test_a_damaged_file_of_notes_hides_the_notes_and_nothing_else(
    site: DashboardSettings, content: str
) -> None:
    if not content:
        site.notes_path().mkdir()
    else:
        site.notes_path().write_text(content)
    with TestClient(create_app(site), base_url=ADDRESS) as client:
        assert client.get("/runs").status_code == 200
        assert client.get("/api/v1/runs?label=good").json()["runs"] == []
        page = client.get("/r/one").text
        assert "cannot write the notes" in page
        assert "Add label" not in page
        assert post(client, "/r/one/labels", label="good") == 503


def test_notes_outlive_the_index(client: Client, site: DashboardSettings, jobs: Path) -> None:
    post(client, "/r/one/labels", label="kept")
    settings = DashboardSettings(jobs_dir=jobs)
    assert settings.notes_path().parent == data_directory()
    assert not settings.notes_path().is_relative_to(settings.index_path().parent)
    assert site.notes_path().parent == site.index_path().parent
    assert (site.notes_path().stat().st_mode & 0o777) == 0o600


def test_the_file_of_notes_is_never_inside_the_jobs_directory(jobs: Path) -> None:
    with pytest.raises(UsageError, match="inside the jobs directory"):
        DashboardSettings(jobs_dir=jobs, index=jobs / "index.db").notes_path()


def test_the_pane_shows_the_command_of_its_notes(client: Client) -> None:
    page = client.get("/r/one").text
    assert re.search(r"data-cli-notes>bench dashboard notes one --jobs-dir ", page)


def test_a_store_in_a_file_that_is_no_directory_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = NotesStore(tmp_path / "file" / "notes.db")
    assert store.problem
    with pytest.raises(StoreError, match="cannot write the notes"):
        store.add_note("r", "", "text", "ana")
