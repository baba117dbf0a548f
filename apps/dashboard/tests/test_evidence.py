"""The evidence of a rollout: its files as attachments, and nothing else of the host."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from benchflow_contracts import StoreError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, reindex
from benchflow_store import EvidenceFile, list_evidence, open_evidence
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import tree_of_all_kinds, tree_of_climbs
from xss_payloads import PAYLOADS, dangers, structure

ADDRESS = "http://127.0.0.1:8642"
SECRET = "the secret of the host"


@pytest.fixture
def rollout(jobs: Path, tmp_path: Path) -> Path:
    """A rollout with logs, artifacts, and links out of its directory."""
    (tmp_path / "secret.txt").write_text(SECRET)
    directory = write_rollout(tree_of_climbs([0, 0]), jobs / "night" / "made__01")
    for path, text in {
        "verifier/test-stdout.txt": "1 failed\n",
        "agent/stderr.txt": "a warning",
        "artifacts/out/report.html": "<script>alert(1)</script>",
        "config.json": '{"secret": 1}',
        "branches/n2/verifier/test-stdout.txt": "of the branch",
    }.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    (directory / "artifacts" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (directory / "artifacts" / "linked").symlink_to(tmp_path)
    (directory / "services").symlink_to(tmp_path)
    os.mkfifo(directory / "artifacts" / "pipe")
    return directory


@pytest.fixture
def client(settings: DashboardSettings, rollout: Path) -> Iterator[TestClient[Litestar]]:
    reindex(settings.index_path(), settings.jobs_dir)
    index = Index(settings.index_path(), settings.jobs_dir)
    with TestClient(create_app(settings, index=index), base_url=ADDRESS) as client:
        yield client


def downloads(page: str) -> list[str]:
    return [url.replace("&amp;", "&") for url in re.findall(r'href="([^"]*/evidence/[^"]*)"', page)]


def test_the_evidence_lists_files_and_shows_the_test_output(client) -> None:
    page = client.get("/r/made__01?sel=n1&tab=evidence").text
    for name in ("agent/stderr.txt", "artifacts/out/report.html", "verifier/test-stdout.txt"):
        assert f">{name}</a>" in page
    assert "1 failed\n</pre>" in page
    assert "config.json" not in page
    assert "3 links, pipes or devices are not shown" in page
    assert SECRET not in page
    [url] = re.findall(r'href="([^"]+)" data-part>artifacts/out/report', page)
    shown = client.get("/r/made__01" + url.replace("&amp;", "&")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;</pre>" in shown


def test_a_file_is_sent_as_an_attachment_that_no_browser_runs(client) -> None:
    page = client.get("/r/made__01?sel=n1&tab=evidence").text
    answers = [client.get(url) for url in downloads(page)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    [html] = [each for each in answers if b"<script>" in each.content]
    assert html.headers["content-disposition"] == "attachment; filename*=UTF-8''report.html"
    assert html.headers["content-type"] == "application/octet-stream"
    assert html.headers["x-content-type-options"] == "nosniff"
    assert html.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert html.headers["content-length"] == str(len(html.content))


def test_a_node_of_a_branch_has_the_files_of_its_branch(client) -> None:
    page = client.get("/r/made__01?sel=n2&tab=evidence").text
    assert "of the branch</pre>" in page
    assert "artifacts/out" not in page
    [url] = downloads(page)
    assert client.get(url).text == "of the branch"
    assert client.get(url.replace("n2", "n1")).status_code == 404


def test_ids_that_are_not_listed_find_nothing(client, rollout: Path) -> None:
    hostile = ("..%2fsecret.txt", "%00", "artifacts%2flink.txt", "x" * 999, "config.json")
    ids = (EvidenceFile(path, 0).id for path in ("config.json", "artifacts/link.txt", "/etc/hosts"))
    for each in (*hostile, *ids):
        answer = client.get(f"/r/made__01/evidence/{each}")
        assert answer.status_code in {404, 405}, each
        assert SECRET not in answer.text


def test_a_file_that_became_a_link_is_refused(client, rollout: Path, tmp_path: Path) -> None:
    page = client.get("/r/made__01?sel=n1&tab=evidence").text
    report = rollout / "artifacts" / "out" / "report.html"
    report.unlink()
    report.symlink_to(tmp_path / "secret.txt")
    (rollout / "verifier").rename(rollout / "old")
    (rollout / "verifier").symlink_to(tmp_path)
    statuses = sorted(client.get(url).status_code for url in downloads(page))
    assert statuses == [200, 404, 404]
    for path in ("artifacts/out/report.html", "verifier/secret.txt", "../night/x", "a\0b", "gone"):
        with (
            pytest.raises(StoreError, match=r"cannot open|not the name"),
            open_evidence(rollout.parent, [rollout.name], EvidenceFile(path, 1)),
        ):
            raise AssertionError(path)


def test_a_rollout_behind_a_link_has_no_evidence(client, rollout: Path, tmp_path: Path) -> None:
    page = client.get("/r/made__01?sel=n1&tab=evidence").text
    rollout.rename(tmp_path / "elsewhere")
    rollout.symlink_to(tmp_path / "elsewhere")
    assert "cannot open the directory" in client.get("/r/made__01?sel=n1&tab=evidence").text
    assert client.get(downloads(page)[0]).status_code == 404


def test_a_file_above_the_limit_is_not_sent(client, rollout: Path) -> None:
    with (rollout / "artifacts" / "core").open("wb") as file:
        file.truncate((256 << 20) + 1)
    page = client.get("/r/made__01?sel=n1&tab=evidence").text
    assert "too large to send" in page
    too_large = EvidenceFile("artifacts/core", 0).id
    assert client.get(f"/r/made__01/evidence/{too_large}").status_code == 413


def test_a_rollout_without_files_says_when_they_come(
    settings: DashboardSettings, jobs: Path
) -> None:
    write_rollout(tree_of_climbs([0, 0]), jobs / "made__01")
    reindex(settings.index_path(), jobs)
    index = Index(settings.index_path(), jobs)
    with TestClient(create_app(settings, index=index), base_url=ADDRESS) as client:
        assert "No file yet" in client.get("/r/made__01?tab=evidence").text


def test_hostile_names_and_texts_stay_text(tmp_path: Path) -> None:
    def page(texts: tuple[str, ...]) -> str:
        home = tmp_path / str(len(list(tmp_path.iterdir())))
        directory = write_rollout(tree_of_all_kinds(texts[0]), home / "jobs" / "made__02")
        artifacts = directory / "artifacts"
        artifacts.mkdir()
        for number, text in enumerate(texts):
            safe = text.replace("/", "").replace("\0", "").encode("utf-8", "replace")
            (artifacts / os.fsdecode(b"%02d" % number + safe[:200])).write_text("x")
        verifier = directory / "verifier" / "test-stdout.txt"
        verifier.parent.mkdir()
        verifier.write_bytes("".join(texts).encode("utf-8", "surrogatepass") + b"\xff")
        settings = DashboardSettings(jobs_dir=home / "jobs", index=home / "index.db")
        reindex(home / "index.db", home / "jobs")
        index = Index(home / "index.db", home / "jobs")
        with TestClient(create_app(settings, index=index), base_url=ADDRESS) as client:
            shown = client.get("/r/made__02?tab=evidence&sel=n5").text
            for url in downloads(shown):
                answer = client.get(url)
                assert answer.status_code == 200
                assert unquote(answer.headers["content-disposition"]).isprintable()
                assert "set-cookie" not in answer.headers
        return shown

    plain, hostile = page(("plain",) * (len(PAYLOADS) + 1)), page((*PAYLOADS, "a\r\nSet-Cookie: x"))
    assert structure(plain) == structure(hostile)
    assert dangers(hostile) == []


def test_a_directory_with_very_many_files_is_cut(tmp_path: Path) -> None:
    artifacts = tmp_path / "r" / "artifacts"
    artifacts.mkdir(parents=True)
    for number in range(2_010):
        (artifacts / f"{number:05d}").touch()
    listing = list_evidence(tmp_path, ["r"], None)
    assert (len(listing.files), listing.hidden, listing.refused) == (2_000, 10, 0)
    deep = artifacts
    for _ in range(30):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    assert list_evidence(tmp_path, ["r"], None).hidden == 10
