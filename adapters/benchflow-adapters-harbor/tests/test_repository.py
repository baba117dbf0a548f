import shutil
from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter, HostPolicy, read_repository
from benchflow_contracts import ListedTask, TaskError
from git_server import below, commit, git, repository
from harbor_corpus import BAD, GOOD, TERMINAL_BENCH, task

HERE = HostPolicy()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def names(listed: list[ListedTask]) -> list[str]:
    return [found.name for found in listed]


def test_a_repository_lists_the_tasks_of_its_tasks_folder(tmp_path: Path, cache: Path) -> None:
    repository(
        tmp_path / "repo",
        below("tasks/a", GOOD["minimal"])
        | below("tasks/b", BAD["no-toml"])
        | below("other/c", task()),
    )
    listed = read_repository(f"file://{tmp_path}/repo", HERE, cache)
    assert [(found.name, found.ok) for found in listed] == [("a", True), ("b", False)]


def test_a_repository_without_that_folder_lists_its_root(tmp_path: Path, cache: Path) -> None:
    repository(tmp_path / "repo", below("a", TERMINAL_BENCH))
    assert names(read_repository(f"file://{tmp_path}/repo", HERE, cache)) == ["a"]


def test_any_folder_at_any_ref_can_be_named(tmp_path: Path, cache: Path) -> None:
    repo = tmp_path / "repo"
    first = repository(repo, below("sets/x/a", task()))
    git(repo, "tag", "-a", "v1", "-m", "one")
    git(repo, "checkout", "-q", "-b", "feature/new")
    commit(repo, below("sets/x/b", task()))
    git(repo, "checkout", "-q", "main")
    url = f"file://{repo}"
    assert names(read_repository(f"{url}/tree/{first}/sets/x", HERE, cache)) == ["a"]
    assert names(read_repository(f"{url}/tree/v1/sets/x/a", HERE, cache)) == ["a"]
    assert names(read_repository(f"{url}/tree/main/sets/x", HERE, cache)) == ["a"]
    git(repo, "branch", "new", "feature/new")
    assert names(read_repository(f"{url}/tree/new/sets/x", HERE, cache)) == ["a", "b"]
    assert names(read_repository(f"{url}@v1", HERE, cache)) == ["a"]


def test_a_cached_commit_does_not_need_the_repository(tmp_path: Path, cache: Path) -> None:
    first = repository(tmp_path / "repo", below("tasks/a", task()))
    source = f"file://{tmp_path}/repo@{first}"
    before = read_repository(source, HERE, cache)
    shutil.rmtree(tmp_path / "repo")
    assert read_repository(source, HERE, cache) == before


def test_a_branch_is_resolved_each_time(tmp_path: Path, cache: Path) -> None:
    repo = tmp_path / "repo"
    repository(repo, below("tasks/a", task()))
    assert names(read_repository(f"file://{repo}", HERE, cache)) == ["a"]
    commit(repo, below("tasks/b", task()))
    assert names(read_repository(f"file://{repo}", HERE, cache)) == ["a", "b"]


def test_an_interrupted_checkout_is_repeated(tmp_path: Path, cache: Path) -> None:
    repo = tmp_path / "repo"
    first = repository(repo, below("tasks/a", task()))
    read_repository(f"file://{repo}@{first}", HERE, cache)
    (home,) = (cache / "git").iterdir()
    shutil.rmtree(home / "trees")
    (home / "repo.git" / "benchflow-ready").unlink()
    assert names(read_repository(f"file://{repo}@{first}", HERE, cache)) == ["a"]
    assert not list(home.glob("stage-*"))


def test_no_hook_and_no_link_of_a_repository_is_followed(tmp_path: Path, cache: Path) -> None:
    repo = tmp_path / "repo"
    files = below("tasks/a", task()) | {"tasks/out": f"-> {tmp_path}/elsewhere", "tasks/in": "-> a"}
    (tmp_path / "elsewhere").mkdir()
    repository(repo, files)
    listed = {found.name: found.ok for found in read_repository(f"file://{repo}", HERE, cache)}
    assert listed == {"a": True, "in": False, "out": False}


def test_a_repository_with_a_tree_bomb_is_refused_by_counting(tmp_path: Path, cache: Path) -> None:
    repo = tmp_path / "repo"
    repository(repo, {"f0": "x"})
    tree = git(repo, "rev-parse", "HEAD^{tree}")
    for _ in range(7):
        listing = "".join(f"040000 tree {tree}\td{index}\n" for index in range(10))
        path = tmp_path / "listing"
        path.write_text(listing)
        tree = git(repo, "-c", f"alias.mk=!git mktree < {path}", "mk")
    bomb = git(repo, "commit-tree", tree, "-m", "bomb")
    git(repo, "update-ref", "refs/heads/bomb", bomb)
    with pytest.raises(TaskError, match="more than 200000 files"):
        read_repository(f"file://{repo}/tree/bomb/d0", HERE, cache)


@pytest.mark.parametrize(
    "source",
    [
        "file:///{tmp}/none",
        "file://{tmp}/repo@no-such-ref",
        "file://{tmp}/repo@--upload-pack=x",
        "file://{tmp}/repo/tree/main/no/such/folder",
        "file://{tmp}/repo/tree/main/../..",
        "file://{tmp}/repo/tree/main/a@main",
        "file://{tmp}/repo@" + "0" * 40,
        "ext::sh -c touch% {tmp}/owned",
    ],
)
def test_a_failed_fetch_is_an_error_with_a_remedy(tmp_path: Path, cache: Path, source: str) -> None:
    repository(tmp_path / "repo", below("a", task()))
    with pytest.raises(TaskError) as caught:
        read_repository(source.format(tmp=tmp_path), HERE, cache)
    assert caught.value.hint
    assert not (tmp_path / "owned").exists()


def test_the_error_has_the_reason_of_git_and_not_its_advice(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(TaskError, match=r"git failed: fatal: .*does not appear to be a git"):
        read_repository(f"file://{tmp_path}/none", HERE, cache)


@pytest.mark.parametrize(
    ("source", "claimed"),
    [
        ("https://example.org/org/repo", True),
        ("git@example.org:org/repo.git@v1", True),
        ("ssh://git@example.org/org/repo", True),
        ("https://example.org/registry.json#sha256=00", True),
        ("ext::sh", False),
        ("org/repo", False),
    ],
)
def test_the_adapter_claims_urls_of_git(source: str, claimed: bool) -> None:
    assert HarborAdapter().claims(source) is claimed
