"""Bundles: the pages as files, equal to the live ones, without secrets and links outwards."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import apsw
import pytest
from benchflow_contracts import EnvState, UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.bundle import BundleOptions, BundleReport, write_bundle
from benchflow_dashboard.bundle.links import PageUrl
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.page_time import at_time
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient
from made_jobs import write_job
from made_rollouts import table, write_rollout
from made_trees import random_tree, tree_of_all_kinds, tree_of_climbs
from watching import until
from xss_payloads import PAYLOADS, MarkupReader

ADDRESS = "http://127.0.0.1:8642"
SECRET = "kanaryB1rd+/9&<secret>Zz"
SMALL = BundleOptions(pages=60)


def state(title: str) -> EnvState:
    return EnvState(databases={"/data/x.db": {"rows": table((1, title))}}, files={"a": title})


def fill(jobs: Path) -> None:
    """Write a job with a record, a small forked rollout with states, and one of all kinds."""
    jobs.mkdir()
    write_job(jobs, "night", {"base": {"t/a": [1.0], "t/c": [None]}, "other": {"t/a": [0.5]}})
    tree = tree_of_climbs([0, 1, 1])
    states = {name: state(name) for name in ("n0", "n1", "n2")}
    write_rollout(tree, jobs / "night" / "a__2", states)
    write_rollout(tree_of_all_kinds("plain"), jobs / "made__02")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundled") / "jobs"
    fill(path)
    return path


@pytest.fixture(scope="module")
def made(jobs: Path) -> tuple[Path, BundleReport]:
    target = jobs.parent / "out"
    return target, write_bundle(jobs, target, SMALL)


@pytest.fixture(scope="module")
def bundle(made: tuple[Path, BundleReport]) -> Path:
    return made[0]


def pages(bundle: Path) -> dict[str, str]:
    """Return the URL of each page by its file."""
    found: dict[str, str] = json.loads((bundle / "bundle.json").read_text())["pages"]
    return found


class PageReader(HTMLParser):
    """The tags and the text of a page, without what only a server can do, and without links."""

    LEFT_OUT = ("form", "script", "dialog", "noscript")
    SKIPPED = re.compile("href|src|hx-.*|data-(live|version|stamp|seq|refresh|rollout)")
    VOID = ("input", "meta", "link", "br", "option")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        is_left = tag in self.LEFT_OUT or "data-server-only" in names or "data-copy" in names
        if self._inside or is_left:
            if tag not in self.VOID:
                self._inside.append(tag)
            return
        if tag not in ("meta", "link"):
            kept = [(k, v) for k, v in attrs if not self.SKIPPED.fullmatch(k)]
            self.seen.append((tag, sorted(kept, key=lambda pair: pair[0])))

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag not in self.VOID:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._inside and (words := data.split()):
            self.seen.append(" ".join(words))


def read(html: str) -> list[object]:
    reader = PageReader()
    reader.feed(html)
    # Parts of a sentence meet when a link between them becomes text.
    return reader.seen


def test_each_page_is_the_live_page(bundle: Path, jobs: Path, tmp_path: Path) -> None:
    moment = json.loads((bundle / "bundle.json").read_text())["at"]
    path = tmp_path / "index.db"
    update_index(path, jobs)
    index = Index(path, jobs)
    app = create_app(DashboardSettings(jobs_dir=jobs, index=path), index=index)
    with at_time(moment), TestClient(app, base_url=ADDRESS) as client:
        until("the whole index", lambda: not index.watcher.is_behind)
        for file, url in pages(bundle).items():
            live = client.get(url)
            assert live.status_code == 200, url
            # Equal lengths first: a difference of long lists takes minutes to print.
            expected, found = read(live.text), read((bundle / file).read_text())
            wrong = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
            assert (url, wrong[:3], len(found)) == (url, [], len(expected))


def test_the_bundle_has_lists_jobs_trees_and_differences(bundle: Path) -> None:
    urls = set(pages(bundle).values())
    wanted = {"/runs", "/jobs", "/jobs/night", "/r/made__02", "/r/a__2", "/r/a__2?sel=n1"}
    assert wanted <= urls
    assert {"/failures", "/jobs/night/compare", "/cost?job=night"} <= urls
    assert "/r/a__2?sel=n1&tab=reward" in urls
    assert "/r/a__2/diff?a=n0&b=n2" in urls or "/r/a__2/diff?a=n0&b=n1" in urls
    assert "no rollout" not in (bundle / "index.html").read_text()


def links(path: Path) -> Iterator[tuple[str, str]]:
    for name, value in re.findall(r'\s(href|src|action|hx-\w+)="([^"]*)"', path.read_text()):
        yield name, value.replace("&amp;", "&")


def test_each_link_leads_to_a_file_of_the_bundle(bundle: Path) -> None:
    count = 0
    for page in bundle.rglob("*.html"):
        for name, link in links(page):
            parts = urlsplit(link)
            assert name in {"href", "src"}, (page, name)
            assert not parts.scheme, (page, link)
            assert not parts.netloc, (page, link)
            assert not parts.query, (page, link)
            assert not parts.path.startswith("/"), (page, link)
            target = page if not parts.path else page.parent / unquote(parts.path)
            assert target.resolve().is_relative_to(bundle.resolve()), (page, link)
            assert target.is_file(), (page, link)
            if parts.fragment and target.suffix == ".html":
                assert f'id="{parts.fragment}"' in target.read_text(), (page, link)
            count += 1
    assert count > 500


def test_style_sheets_have_relative_links_only(bundle: Path) -> None:
    for sheet in bundle.rglob("*.css"):
        for target in re.findall(r'url\("?([^")]+)"?\)', sheet.read_text()):
            if not target.startswith("data:"):
                assert (sheet.parent / target).is_file(), (sheet, target)


def test_each_page_refuses_scripts_and_requests(bundle: Path) -> None:
    for page in bundle.rglob("*.html"):
        text = page.read_text()
        policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        assert len(policy) == 1, page
        assert policy[0].startswith("default-src 'none'")
        assert "script-src" not in policy[0]
        assert "unsafe" not in policy[0]
        for forbidden in ("<script", "<form", "csrf", "hx-get", "http://", "https://"):
            assert forbidden not in text.replace("http://www.w3.org/2000/svg", ""), (
                page,
                forbidden,
            )


def contents(bundle: Path) -> dict[str, bytes]:
    files = (path for path in bundle.rglob("*") if path.is_file())
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in files}


def test_equal_records_give_equal_bytes(bundle: Path, jobs: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_bundle(jobs, again, SMALL)

    assert contents(again) == contents(bundle)


def encodings(secret: str) -> dict[str, str]:
    raw = secret.encode()
    return {
        "plain": secret,
        "base64": base64.b64encode(b"x:" + raw).decode(),
        "hex": raw.hex(),
        "percent": "".join(
            f"%{byte:02X}" if not chr(byte).isalnum() else chr(byte) for byte in raw
        ),
        "json": json.dumps(json.dumps(secret))[3:-3],
        "reversed": secret[::-1],
    }


def test_no_secret_in_any_of_six_encodings_is_in_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_VALUE", SECRET)
    jobs = tmp_path / "jobs"
    fill(jobs)
    forms = encodings(SECRET)
    text = " | ".join(forms.values())
    write_rollout(tree_of_all_kinds(text), jobs / "made__03", {"n5": state(text)})
    put_into_the_record(jobs / "night" / "record.db", SECRET)

    target = tmp_path / "out"
    report = write_bundle(jobs, target, BundleOptions(redact_env=("CANARY_VALUE",), pages=60))

    assert report.redacted
    cores = {name: form[4:-4] for name, form in forms.items()} | {"tag": SECRET[:10]}
    for path in target.rglob("*"):
        if path.is_file():
            body = path.read_bytes()
            for name, core in cores.items():
                for escaped in (core, core.replace("&", "&amp;").replace("<", "&lt;")):
                    assert escaped.encode() not in body, (path.name, name)
    assert "[redacted]" in (target / "r" / "made__03" / "index.html").read_text()


def put_into_the_record(database: Path, secret: str) -> None:
    db = apsw.Connection(str(database))
    try:
        with db:
            db.execute(
                "UPDATE attempts SET error_message = ? WHERE error_message IS NOT NULL",
                (f"404 from {secret}",),
            )
    finally:
        db.close()


def test_credentials_are_masked_by_their_shape(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    key = "sk-" + "a1B2c3D4" * 4
    write_rollout(tree_of_all_kinds(f"use {key} now"), jobs / "made__02")
    write_bundle(jobs, tmp_path / "out", SMALL)
    assert not [name for name, body in contents(tmp_path / "out").items() if key.encode() in body]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    bundles: list[dict[str, list[str]]] = []
    # A lone surrogate cannot be written into a record.
    hostile = "\n".join(PAYLOADS).encode("utf-8", "replace").decode()
    for text in ("plain", hostile):
        home = tmp_path / str(len(bundles))
        write_rollout(tree_of_all_kinds(text), home / "jobs" / "made__02")
        write_bundle(home / "jobs", home / "out", BundleOptions(pages=30))
        readers = {
            file: MarkupReader((home / "out" / file).read_text())
            for file in pages(home / "out")
            if file.startswith("r/")
        }
        for reader in readers.values():
            assert not [name for _, name, _ in reader.attributes if name.startswith("on")]
        bundles.append({file: reader.elements for file, reader in readers.items()})

    assert bundles[0] == bundles[1]


def test_a_bundle_of_a_rollout_has_nothing_of_its_job(jobs: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    report = write_bundle(jobs, target, BundleOptions(rollouts=("a__2",), pages=10))

    assert report.rollouts == 1
    for name, body in contents(target).items():
        assert b"night-000" not in body, name
        assert b"made__02" not in body, name


def test_a_bundle_of_a_job_has_only_that_job(jobs: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_bundle(jobs, target, BundleOptions(jobs=("night",), pages=10))
    assert "/jobs/night" in pages(target).values()
    assert not [name for name, body in contents(target).items() if b"made__02" in body]


def test_limits_leave_out_the_rest_and_say_so(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    for number in range(3):
        directory = write_rollout(random_tree(30, seed=number), jobs / f"made__{number}")
        for path in directory.iterdir():
            os.utime(path, (1_000 + number, 1_000 + number))
    target = tmp_path / "out"
    report = write_bundle(jobs, target, BundleOptions(limit=2, pages=5))

    assert (report.rollouts, report.left_out) == (2, 1)
    assert report.omitted_pages > 0
    shown = [url for url in pages(target).values() if url.startswith("/r/")]
    assert len(shown) == 10
    assert not [url for url in shown if url.startswith("/r/made__0")]
    front = (target / "index.html").read_text()
    assert "1 further rollouts were left out" in front


def test_a_used_directory_is_refused_and_only_a_bundle_is_replaced(
    jobs: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("keep")
    for force in (False, True):
        with pytest.raises(UsageError, match=r"is not empty|is not a bundle"):
            write_bundle(jobs, other, SMALL.model_copy(update={"force": force}))
    assert (other / "mine.txt").read_text() == "keep"

    target = tmp_path / "out"
    first = BundleOptions(rollouts=("made__02",), pages=2)
    target.mkdir()
    write_bundle(jobs, target, first)
    with pytest.raises(UsageError, match="is not empty"):
        write_bundle(jobs, target, first)
    (target / "old.html").write_text("old")
    write_bundle(jobs, target, first.model_copy(update={"force": True}))
    assert not (target / "old.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_links_are_followed_neither_in_nor_out(jobs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.jsonl").write_text('{"outside": "leak"}\n')
    copy = tmp_path / "jobs"
    shutil.copytree(jobs, copy)
    (copy / "linked__1").symlink_to(outside)
    (copy / "made__02" / "result.json").unlink()
    (copy / "made__02" / "result.json").symlink_to(outside / "events.jsonl")
    (copy / "made__02" / "states").symlink_to(outside)
    write_bundle(copy, tmp_path / "out", SMALL)
    for name, body in contents(tmp_path / "out").items():
        assert b"leak" not in body, name
        assert b"linked__1" not in body, name

    (tmp_path / "link").symlink_to(outside)
    for target, reason in ((tmp_path / "link", "is a link"), (copy / "out", "inside the jobs")):
        with pytest.raises(UsageError, match=reason):
            write_bundle(copy, target, SMALL)
    assert [path.name for path in outside.iterdir()] == ["events.jsonl"]


@pytest.mark.parametrize(
    "options",
    [BundleOptions(jobs=("day",)), BundleOptions(rollouts=("x",)), BundleOptions(rollouts=("",))],
)
def test_an_unknown_selection_is_refused(
    jobs: Path, tmp_path: Path, options: BundleOptions
) -> None:
    with pytest.raises(UsageError):
        write_bundle(jobs, tmp_path / "out", options)
    assert not list(tmp_path.iterdir())


@given(st.sets(st.text(min_size=1, max_size=120), min_size=2, max_size=6))
def test_different_pages_have_different_plain_names(names: set[str]) -> None:
    urls = [f"/r/{quote(name, safe='')}" for name in names]
    files = [PageUrl(url, "", 0).file for url in urls]
    assert len({file.lower() for file in files}) == len(files)
    for file in files:
        assert re.fullmatch(r"[A-Za-z0-9._/-]+", file)
        assert all(part not in {"", ".", ".."} for part in file.split("/"))
