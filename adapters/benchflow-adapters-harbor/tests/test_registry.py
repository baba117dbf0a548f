import hashlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from benchflow_adapters_harbor import (
    HarborAdapter,
    HostPolicy,
    load_harbor_task,
    read_registry,
)
from benchflow_contracts import TaskError, UsageError
from git_server import below, commit, repository
from harbor_corpus import BAD, GOOD, task, write

HERE = HostPolicy()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Return a directory and the URL under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def dataset(tasks: list[dict[str, Any]], version: str = "1.0", name: str = "set") -> dict[str, Any]:
    return {"name": name, "version": version, "description": "", "tasks": tasks, "metrics": []}


def registry(path: Path, *datasets: dict[str, Any]) -> str:
    path.write_text(json.dumps(datasets))
    return str(path)


def listed(found: Any) -> list[tuple[str, bool]]:
    return [(task.name, task.ok) for task in found]


def test_each_task_is_read_at_its_own_commit(tmp_path: Path, cache: Path) -> None:
    repo, url = tmp_path / "repo", f"file://{tmp_path}/repo"
    first = repository(repo, below("sets/x/a", task()))
    second = commit(repo, below("sets/x/a", BAD["no-toml"]) | below("sets/x/b", task()))
    source = registry(
        tmp_path / "registry.json",
        dataset(
            [
                {"name": "one", "git_url": url, "git_commit_id": first, "path": "sets/x/a"},
                {"name": "two", "git_url": url, "git_commit_id": second, "path": "sets/x/a"},
                {"name": "three", "git_url": url, "git_commit_id": second, "path": "sets/x/b"},
                {"name": "four", "git_url": url, "path": "sets/x/b"},
            ]
        ),
    )
    found = read_registry(source, HERE, cache)
    assert listed(found) == [("one", True), ("two", False), ("three", True), ("four", True)]


def test_a_task_that_cannot_be_fetched_is_refused_alone(tmp_path: Path, cache: Path) -> None:
    url = f"file://{tmp_path}/repo"
    first = repository(tmp_path / "repo", below("a", task()) | {"link": "-> a", "up": "-> .."})
    here = {"git_url": url, "git_commit_id": first}
    tasks = [
        {"name": "good", **here, "path": "a"},
        {"name": "gone", **here, "path": "b"},
        {"name": "up", **here, "path": "../a"},
        {"name": "absolute", **here, "path": "/a"},
        {"name": "linked", **here, "path": "link"},
        {"name": "linked-up", **here, "path": "up/repo/a"},
        {"name": "no-repo", "git_url": f"{url}-2", "git_commit_id": first, "path": "a"},
        {"name": "no-commit", "git_url": url, "git_commit_id": "0" * 40, "path": "a"},
        {"name": "option", "git_url": "--upload-pack=x", "git_commit_id": first, "path": "a"},
        {"name": "helper", "git_url": "ext::sh -c x", "git_commit_id": first, "path": "a"},
        {"name": "outside", "path": "../../etc"},
    ]
    found = read_registry(registry(tmp_path / "registry.json", dataset(tasks)), HERE, cache)
    assert [name for name, ok in listed(found) if ok] == ["good"]
    assert len(found) == len(tasks)
    assert all(refusal.hint for each in found for refusal in each.refusals)


def test_cached_commits_do_not_need_the_repository(tmp_path: Path, cache: Path) -> None:
    first = repository(tmp_path / "repo", below("a", task()) | below("b", task()))
    here = {"git_url": f"file://{tmp_path}/repo", "git_commit_id": first}
    tasks = [{"name": name, **here, "path": name} for name in ("a", "b")]
    source = registry(tmp_path / "registry.json", dataset(tasks))
    before = read_registry(source, HERE, cache)
    shutil.rmtree(tmp_path / "repo")
    assert read_registry(source, HERE, cache) == before
    assert all(found.ok for found in before)


def test_a_task_must_match_its_own_digest(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "a", GOOD["minimal"])
    digest = load_harbor_task(tmp_path / "a").digest
    tasks = [
        {"name": "right", "path": "a", "digest": digest},
        {"name": "wrong", "path": "a", "digest": "sha256:" + "0" * 64},
    ]
    source = registry(tmp_path / "registry.json", dataset(tasks))
    assert listed(read_registry(source, HERE, cache)) == [("right", True), ("wrong", False)]


def test_the_best_version_is_head_then_the_highest(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "a", task())

    def chosen(*versions: str, wanted: str | None = None) -> str:
        sets = [dataset([{"name": v, "path": "a"}], v) for v in versions]
        source = registry(tmp_path / "registry.json", *sets)
        (found,) = read_registry(source, HERE, cache, dataset=wanted)
        return found.name

    assert chosen("2.0", "head", "10.0") == "head"
    assert chosen("2.0", "10.0", "9.1rc1", "zoo") == "10.0"
    assert chosen("alpha", "beta") == "beta"
    assert chosen("1.0", "2.0", wanted="set@1.0") == "1.0"


def test_a_dataset_must_be_named_where_there_are_several(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "a", task())
    sets = [dataset([{"name": "t", "path": "a"}], name=name) for name in ("x", "y")]
    source = registry(tmp_path / "registry.json", *sets)
    for wanted in (None, "z", "x@9"):
        with pytest.raises(UsageError) as caught:
            read_registry(source, HERE, cache, dataset=wanted)
        assert "x@1.0, y@1.0" in (caught.value.hint or "")
    assert len(HarborAdapter(cache=cache).list_tasks(source, dataset="y")) == 1


@pytest.mark.parametrize("text", ["{", "{}", "[{}]", "[" * 100_000, '[{"name": 1}]'])
def test_a_malformed_registry_is_an_error(tmp_path: Path, cache: Path, text: str) -> None:
    (tmp_path / "registry.json").write_text(text)
    with pytest.raises(TaskError, match=r"registry\.json"):
        read_registry(str(tmp_path / "registry.json"), HERE, cache)


def test_a_registry_of_the_network_may_not_name_places_of_this_machine(
    tmp_path: Path, served: tuple[Path, str], cache: Path
) -> None:
    folder, url = served
    first = repository(tmp_path / "repo", below("a", task()))
    tasks = [
        {"name": "file", "git_url": f"file://{tmp_path}/repo", "git_commit_id": first, "path": "a"},
        {"name": "path", "path": "a"},
    ]
    registry(folder / "registry.json", dataset(tasks))
    found = read_registry(f"{url}/registry.json", HERE, cache)
    assert listed(found) == [("file", False), ("path", False)]


def test_a_registry_with_a_digest_is_checked_and_cached(
    served: tuple[Path, str], cache: Path
) -> None:
    folder, url = served
    source = registry(folder / "registry.json", dataset([]))
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    adapter = HarborAdapter(cache=cache)
    assert adapter.list_tasks(f"{url}/registry.json#sha256={digest}") == []
    Path(source).write_text("changed")
    assert adapter.list_tasks(f"{url}/registry.json#sha256={digest}") == []
    with pytest.raises(TaskError, match="has the sha256"):
        adapter.list_tasks(f"{url}/registry.json#sha256={'0' * 64}")


@pytest.mark.parametrize(
    "source",
    [
        "{url}/missing.json",
        "{url}/registry.json#md5=1",
        "http://registry.invalid/registry.json",
    ],
)
def test_an_unsafe_url_is_an_error(served: tuple[Path, str], cache: Path, source: str) -> None:
    with pytest.raises(TaskError) as caught:
        read_registry(source.format(url=served[1]), HERE, cache)
    assert caught.value.hint
