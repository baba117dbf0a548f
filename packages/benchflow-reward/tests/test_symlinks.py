"""Files that the tests find through links of the agent's, which have another name there."""

import asyncio
import subprocess

import pytest
from benchflow_contracts import ExecResult, FileChanges, RewardError, SandboxSpec
from benchflow_reward.script import symlinks
from benchflow_reward.script.integrity import integrity_report
from benchflow_reward.script.search_paths import SearchPaths
from benchflow_reward.script.tamper_rules import TamperRules

DIRS = ["/app", "/home", "/root", "/tmp"]
PATH = "/app/.venv/bin:/usr/local/bin:/usr/bin:/bin"
SITE = "/usr/local/lib/python3.11/dist-packages"
IMAGE = SearchPaths({"HOME": "/root"})


def graded(provider, links, added, *, leads=None, tests=b"python3 -m pytest /tests", expected=()):
    """Grade these links and files; a link leads where it says, or as `leads` says."""
    real = {**links, **(leads or {})}

    def told(call):
        found = "".join(f"{link}\0{real[link]}\0" for link in call.cmd[4:] if link in real)
        return ExecResult(exit_code=0, stdout=f"{found}end\0", stderr="", duration_sec=0)

    async def main():
        box = await provider.create(SandboxSpec())
        box.on("/bin/sh -c for l in", told)
        changes = FileChanges(added=(*links, *added), links=links)
        rules = TamperRules.of(tests, DIRS, PATH, expected, pinned=False, image=IMAGE)
        return await integrity_report(box, changes, rules, user="root")

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("link", "target", "file"),
    [
        (SITE, "/opt/own", "/opt/own/_pytest/runner.py"),
        (SITE, "/app/own", "/app/own/x.pth"),
        (SITE, "/", "/pytest.py"),
        ("/usr/local/lib", "/app/lib", "/app/lib/python3.11/dist-packages/pytest.py"),
        ("/usr/local", "/app/own", "/app/own/bin/python3"),
        ("/usr/local/include", "/app/own", "/app/own/assert.h"),
        ("/etc/ssl", "/app/own", "/app/own/openssl.cnf"),
        ("/root/.local", "/app/own", "/app/own/lib/python3.11/site-packages/usercustomize.py"),
        ("/root", "/app/own", "/app/own/.jq"),
        ("/app/json", "/app/own", "/app/own/__init__.py"),
        ("/app/.venv", "/app/own", "/app/own/bin/pytest"),
        ("/app/.venv/lib", "/app/own", "/app/own/python3.11/site-packages/x.pth"),
    ],
)
def test_a_file_is_graded_by_where_a_link_puts_it(provider, link, target, file):
    tests = b"python3 -m pytest /tests; gcc /tests/t.c; jq . /app/x"
    report = graded(provider, {link: target}, [file], tests=tests)
    name = link + file[len(target.rstrip("/")) :]
    assert {"path": name, "change": "added", "grade": "tampered"} in report["findings"]


def test_a_link_behind_a_link_is_followed(provider):
    links = {SITE: "/opt/a", "/opt/a/pytest": "/opt/b"}
    behind = {f"{SITE}/pytest": "/opt/b"}
    report = graded(provider, links, ["/opt/b/main.py"], leads=behind)
    assert f"{SITE}/pytest/main.py" in {found["path"] for found in report["findings"]}


@pytest.mark.parametrize("real", ["", "/opt/\ufffd", "/opt/\\xff", "/opt/a\nb"])
def test_a_link_that_leads_nobody_knows_where_is_tampering(provider, real):
    assert graded(provider, {SITE: "/proc/self/cwd"}, [], leads={SITE: real})["grade"] == "tampered"


def test_a_shell_says_where_links_to_directories_lead(provider, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "pytest.py").write_text("")
    targets = {"-packages": "own", "by-link": "-packages", "file": "own/pytest.py", "away": "gone"}
    targets["here"] = "/proc/self/cwd"
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    links = {str(tmp_path / name): target for name, target in targets.items()}

    def shell(call):
        done = subprocess.run(call.cmd, cwd=call.cwd, capture_output=True, text=True, check=False)
        return ExecResult(
            exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, duration_sec=0
        )

    async def main():
        box = await provider.create(SandboxSpec())
        box.on("/bin/sh -c for l in", shell)
        rules = TamperRules.of(b"true", ["/app"], PATH, pinned=False, image=IMAGE)
        known = dict.fromkeys([*links, str(tmp_path / "own" / "pytest.py")], "added")
        return await symlinks.find_linked_names(box, known, links, rules)

    names, dark = asyncio.run(main())
    assert names == {f"{tmp_path}/{each}/pytest.py": "added" for each in ("-packages", "by-link")}
    assert dark == {str(tmp_path / "here")}


def test_links_that_lead_into_each_other_end(provider):
    links = {"/opt/a/b": "/opt/c", "/opt/c/d": "/opt/a"}
    behind = {"/opt/a/b/d": "/opt/a", "/opt/c/d/b": "/opt/c"}
    behind |= {"/opt/a/b/d/b": "/opt/c", "/opt/c/d/b/d": "/opt/a"}
    assert graded(provider, links, ["/opt/a/x", "/opt/c/y"], leads=behind)["grade"] == "clean"


def test_more_names_than_anybody_looks_at_are_tampering(provider, monkeypatch):
    monkeypatch.setattr(symlinks, "_MAX_NAMES", 3)
    links = {f"/opt/{each}": "/srv" for each in "abcd"}
    assert graded(provider, links, [])["grade"] == "tampered"


def test_files_are_not_multiplied_by_links_to_them_without_end(provider, monkeypatch):
    monkeypatch.setattr(symlinks, "_MAX_NAMES", 50)
    links = {f"/opt/link{number}": "/srv/own" for number in range(10)}
    report = graded(provider, links, [f"/srv/own/{number}.py" for number in range(10)])
    assert {found["path"] for found in report["findings"]} == {*links}


@pytest.mark.parametrize(
    ("link", "target", "file"),
    [
        ("/usr/lib/jvm/default", "/usr/lib/jvm/java-17", "/usr/lib/jvm/java-17/bin/java"),
        ("/usr/share/doc/b", "/usr/share/doc/a", "/usr/share/doc/a/copyright"),
        ("/app/.venv/lib64", "/app/.venv/lib", "/app/.venv/lib/python3.11/site-packages/six.py"),
        ("/app/node_modules/own", "/app/packages/own", "/app/packages/own/json.py"),
        ("/app/current", "/app/v1", "/app/v1/json.py"),
        ("/root/.cache", "/app/cache", "/app/cache/x/json.py"),
    ],
)
def test_links_of_honest_work_are_clean(provider, link, target, file):
    assert graded(provider, {link: target}, [file])["grade"] == "clean"


def test_what_a_task_expects_is_not_looked_through(provider):
    report = graded(provider, {SITE: "/opt/own"}, ["/opt/own/pytest.py"], expected=[SITE])
    assert report["grade"] == "clean"


@pytest.mark.parametrize("stdout", ["", "end", f"{SITE}\0/opt\0", f"{SITE}\0end\0"])
def test_a_twin_that_does_not_say_all_of_it_vouches_for_nothing(provider, stdout):
    told = ExecResult(exit_code=0, stdout=stdout, stderr="", duration_sec=0)

    async def main():
        box = await provider.create(SandboxSpec())
        box.on("/bin/sh -c for l in", lambda call: told)
        rules = TamperRules.of(b"true", DIRS, PATH, pinned=False, image=IMAGE)
        changes = FileChanges(added=(SITE,), links={SITE: "/opt"})
        return await integrity_report(box, changes, rules, user="root")

    with pytest.raises(RewardError, match="cannot be told"):
        asyncio.run(main())
