"""What the tests find in the image and in their own words, and what of an agent's hides it."""

import asyncio

import pytest
from benchflow_contracts import ExecResult, FileChanges, RewardError, SandboxSpec
from benchflow_reward.script.configuration import configures_pytest, runs_git_program
from benchflow_reward.script.integrity import agent_dirs, integrity_report
from benchflow_reward.script.search_paths import SearchPaths, list_search_paths
from benchflow_reward.script.tamper_rules import TamperRules

DIRS = ["/app", "/home", "/root", "/tmp"]
PATH = ".tools/bin:/root/env/bin:/app/.venv/bin:/opt/conda/bin:/usr/local/bin:/usr/bin:/bin"
SITE = "/app/.venv/lib/python3.11/site-packages"
OWN = "/app/env/lib/python3.11/site-packages"
RUNS = b"[diff]\n\texternal = /app/x\n"
IMAGE = SearchPaths(
    {
        "HOME": "/root",
        "PYTHONPATH": "/app/src:/opt/lib:extra",
        "BASH_ENV": "/opt/env.sh",
        "LD_LIBRARY_PATH": "/app/lib",
    },
    frozenset(
        {
            "/usr/bin/node",
            "/usr/bin/npm",
            "/usr/lib/x86_64-linux-gnu/libpcre2-8.so.0",
            "/usr/lib/python3/dist-packages/requests",
            f"{SITE}/anyio",
            f"{SITE}/tests",
        }
    ),
    frozenset({"anyio"}),
)


def grade(path, tests=b"true", change="added", links=None, *, pinned=False):
    rules = TamperRules.of(tests, DIRS, PATH, pinned=pinned, image=IMAGE)
    return rules.grade(path, change, links or {})


def graded(provider, files, tests):
    """Grade files that an agent added, by what they say."""

    async def main():
        box = await provider.create(SandboxSpec())
        for path, text in files.items():
            box.files.put(path, text)
        rules = TamperRules.of(tests, DIRS, PATH, pinned=False, image=IMAGE)
        return await integrity_report(box, FileChanges(added=tuple(files)), rules, user="root")

    return asyncio.run(main())["grade"]


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("/app/json/__init__.py", b"python3 -m pytest /tests"),
        ("/app/json.so", b"python3 -c 'import json'"),
        ("/app/pathlib.pyc", b"python3 - <<END"),
        ("/app/requests.py", b"python3 -m pytest /tests"),
        ("/app/lib/json.py", b"sys.path.insert(0, '/app/lib')"),
        ("/srv/json.py", b"cd /srv && python3 -m unittest"),
        ("/app/src/json.py", b"pytest /tests"),
        ("/opt/lib/requests/__init__.py", b"pytest /tests"),
        ("/app/extra/json.py", b"pytest /tests"),
        ("/app/lib/libpcre2-8.so.0", b"true"),
        ("/app/.tools/bin/pytest", b"true"),
        ("/opt/env.sh", b"true"),
        ("/usr/local/bin/node", b"npm test"),
        ("/usr/local/lib/libpcre2-8.so.0", b"grep -P x y"),
        (f"{SITE}/_pytest/runner.py", b"pytest /tests"),
        (f"{SITE}/x.pth", b"pytest /tests"),
        (f"{SITE}/anyio/pytest_plugin.py", b"pytest /tests"),
        ("/opt/conda/lib/python3.11/json/decoder.py", b"python3 /tests/x.py"),
        ("/opt/conda/lib/libcrypto.so.3", b"python3 /tests/x.py"),
        ("/etc/ssl/openssl.cnf", b"true"),
        ("/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.d/x.conf", b"true"),
        ("/usr/local/include/assert.h", b"gcc /tests/t.c"),
        ("/usr/include/x86_64-linux-gnu/assert.h", b"gcc /tests/t.c"),
        ("/usr/local/include/vector", b"g++ /tests/t.cc"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/specs", b"gcc /tests/t.c"),
        ("/usr/local/lib/site_ruby/json.rb", b"ruby /tests/t.rb"),
        ("/node_modules/chai/index.js", b"node /tests/t.js"),
        ("/usr/local/etc/php/conf.d/zz.ini", b"php /tests/t.php"),
        ("/usr/share/git-core/templates/hooks/post-checkout", b"git clone /app /tmp/x"),
        ("/app/.git/hooks/post-checkout", b"git checkout main"),
        ("/root/.jq", b"jq -e .x /app/a.json"),
        ("/root/.sqliterc", b"sqlite3 /app/a.db"),
        ("/root/.local/bin/python3", b"source $HOME/.local/bin/env; python3 /tests/x.py"),
    ],
)
def test_what_hides_or_configures_what_the_tests_use_is_tampered_with(path, tests):
    assert grade(path, tests) == "tampered"


def test_an_environment_that_the_tests_name_is_theirs_as_far_as_it_was_there():
    path, tests = "/app/env/lib/python3.11/site-packages/_pytest/runner.py", b"/app/env/bin/pytest"
    assert grade(path, tests, "changed") == "tampered"
    assert grade(path, tests, "added") is None
    assert grade(path, b"true", "changed") is None


def test_a_package_that_uv_kept_is_what_it_installs():
    path = "/root/.cache/uv/archive-v0/x/_pytest/runner.py"
    tests = b"uvx -w pytest pytest /tests/x.py"
    assert grade(path, tests, "changed") == "tampered"
    assert grade(path, tests) == "suspicious"
    assert grade(path, b"pytest /tests/x.py") is None


def test_a_working_directory_below_usr_src_is_an_agents():
    dirs = agent_dirs("/usr/src/app")
    rules = TamperRules.of(b"python3 -m pytest /tests", dirs, PATH, pinned=False)
    assert dirs[0] == "/usr/src/app"
    assert rules.grade("/usr/src/app/json.py", "added", {}) == "tampered"
    assert rules.grade("/usr/src/app/main.py", "added", {}) is None


def test_where_tests_run_counts_also_where_it_is_not_the_agents_alone():
    tests = b"python3 -m pytest /tests"
    rules = TamperRules.of(tests, agent_dirs("/"), PATH, pinned=False, workdir="/")
    assert rules.grade("/json.py", "added", {}) == "tampered"


@pytest.mark.parametrize("path", ["/usr/include/stdio.h", "/usr/include/foo.h"])
def test_a_header_that_was_there_is_what_compiled_tests_are_made_of(path):
    assert grade(path, b"gcc /tests/t.c", "changed") == "tampered"


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("/app/requests.py", b"pytest /tests"),
        ("/app/solution.py", b"python3 -m pytest /tests; from solution import add"),
        ("/app/src/package/types.py", b"python3 -m pytest /tests"),
        ("/app/json/data.txt", b"python3 -m pytest /tests"),
        ("/usr/local/bin/jq", b"npm test"),
        ("/usr/local/lib/libfoo.so.1", b"true"),
        (f"{SITE}/numpy/__init__.py", b"pytest /tests"),
        ("/opt/other/lib/python3.11/json/decoder.py", b"python3 /tests/x.py"),
        ("/usr/local/include/assert.h", b"python3 /tests/x.py"),
        ("/usr/include/foo.h", b"gcc /tests/t.c"),
        ("/etc/perl/strict.pm", b"ruby /tests/t.rb"),
        ("/root/.jq", b"python3 /tests/x.py"),
        ("/root/.gitconfig", b"git status"),
        ("/app/.git/config", b"git status"),
        ("/root/.local/bin/foo", b"source $HOME/.local/bin/env; python3 /tests/x.py"),
        ("/app/lib/libfoo.so", b"true"),
        ("/root/env/lib/python3.11", b"true"),
        ("/root/env/lib/python3.11/site-packages", b"true"),
        ("/app/tests/__init__.py", b"python3 -m pytest /tests"),
        ("/app/env/lib/python3.11/site-packages/x.pth", b"true"),
        ("/app/f", b"git clone /app /tmp/c; cat /tmp/c/f"),
        ("/usr/local/include/foo", b"gcc /tests/t.c"),
    ],
)
def test_what_hides_nothing_is_the_agents_own(path, tests):
    assert grade(path, tests) is None


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("/app/.git/hooks/post-receive", b"git push"),
        ("/app/.git/hooks/pre-commit", b"git commit -m x | grep 'pre-commit'"),
        ("/root/.local/bin/uvx", b"source $HOME/.local/bin/env; uvx pytest /tests"),
        ("/app/conftest.py", b"pytest /tests"),
        ("/app/env/lib/python3.11/site-packages/x.pth", b"/app/env/bin/pytest"),
    ],
)
def test_what_a_task_may_ask_for_is_suspicious(path, tests):
    assert grade(path, tests) == "suspicious"


def test_a_cache_of_bytecode_that_is_a_link_is_tampered_with():
    path = "/usr/lib/python3.11/json/__pycache__"
    assert grade(path, links={path: "/opt/cache"}) == "tampered"
    assert grade(path) is None


def test_our_own_tests_have_pinned_variables():
    assert grade("/opt/lib/json.py", pinned=True) is None
    assert grade("/opt/env.sh", pinned=True) is None


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (b"[user]\n\tname = me\n[core]\n\tfsmonitor = true\n[alias]\n\tst = status\n", False),
        (b'[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\trequired = true\n', False),
        (b'[remote "origin"]\n\turl = https://h/process\n', False),
        (b"[diff]\n\texternal = /app/show\n", True),
        (b"[core] FSMonitor=/app/watch", True),
        (b'[diff "z"]\r\n textconv = cat /tests/x\r\n', True),
        (b"[core]\n\thooksPath = /app/hooks\n", True),
        (b"[include]\n\tpath = ../more\n", True),
        (b'[includeIf "gitdir:/"]\n\tpath = /more\n', True),
        (b"[diff]\n\texternal = \\\n/app/show\n", True),
        (b'[filter "lfs"]\n\tclean = git-lfs clean -- %f || /app/x\n', True),
        (b'[filter "lfs"]\n\tclean = "git-lfs clean -- %f; /app/x"\n', True),
        (b'[diff "a]b"] textconv = /app/x\n', True),
        (b"[user] [core] fsmonitor = /app/x\n", True),
        (b"[core]\n\tsshCommand = /app/x; :\n", True),
        (b"[core]\n\taskPass = /app/x\n", True),
        (b"[core]\n\tgitProxy = /app/x\n", True),
        (b"[core]\n\teditor = vim\n\tpager = less\n", False),
        (b"[pager]\n\tlog = /app/x\n", True),
        (b"[credential]\n\thelper = store\n", False),
        (b"[credential]\n\thelper = /app/x\n", True),
        (b'[alias]\n\tx = "!/app/x"\n', True),
        (b'[remote "origin"]\n\turl = /app\n\tuploadpack = /app/x\n', True),
        (b'[remote "origin"]\n\turl = ext::/app/x\n', True),
        (b'[remote "origin"]\n\turl = https://example.org/x.git\n\tfetch = +a:b\n', False),
        (b'[url "/app/fake"]\n\tinsteadOf = https://example.org/\n', True),
        (b"\xef\xbb\xbf[core] fsmonitor = /app/x\n", True),
        (b"[gpg]\n\tprogram = /app/x\n[log]\n\tshowSignature = true\n", True),
    ],
)
def test_a_configuration_of_git_that_runs_something_is_told_from_others(text, runs):
    assert runs_git_program(text) is runs


def test_a_project_file_is_read_for_what_concerns_pytest():
    assert configures_pytest(b'[tool.pytest.ini_options]\naddopts = "-p x"\n')
    assert not configures_pytest(b'[project]\ndependencies = ["pytest"]\n')


@pytest.mark.parametrize(
    ("path", "text", "tests", "wanted"),
    [
        ("/app/.git/config", b"[diff]\nexternal = x\n", b"git diff", "tampered"),
        ("/app/.git/config", b"[user]\nname = x\n", b"git diff", "clean"),
        ("/app/.git/config", b"[diff]\nexternal = x\n", b"true", "clean"),
        (f"{SITE}/x-1.dist-info/entry_points.txt", b"[pytest11]\n", b"pytest /tests", "tampered"),
        (f"{OWN}/x-1.dist-info/entry_points.txt", b"[pytest11]\n", b"pytest /tests", "clean"),
        ("/app/src/x.egg-info/entry_points.txt", b"[pytest11]\n", b"pytest /tests", "tampered"),
        ("/app/pyproject.toml", b"[tool.pytest.ini_options]\n", b"cd /app\npytest", "suspicious"),
        ("/app/pyproject.toml", b"[tool.pytest.ini_options]\n", b"pytest /tests/x.py", "clean"),
    ],
)
def test_some_files_are_graded_by_what_they_say(provider, path, text, tests, wanted):
    assert graded(provider, {path: text}, tests) == wanted


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"/app/.git": b"gitdir: /srv/r\n", "/srv/r/HEAD": b"", "/srv/r/config": RUNS}, "tampered"),
        ({"/srv/r.git/HEAD": b"", "/srv/r.git/config": b"[core]\n\tbare = true\n"}, "clean"),
        ({"/app/.git/commondir": b"/srv/r\n", "/srv/r/config": RUNS}, "tampered"),
        ({"/app/.git/worktrees/x/commondir": b"../..\n"}, "clean"),
        ({"/app/supervisor/config": RUNS}, "clean"),
    ],
)
def test_a_repository_is_where_git_finds_one(provider, files, wanted):
    assert graded(provider, files, b"git log -p") == wanted


def test_more_files_to_read_than_anybody_has_are_tampering(provider):
    files = {f"/app/{number:03}/.git/config": b"" for number in range(80)}
    assert graded(provider, files, b"git diff") == "tampered"


def test_the_cache_of_the_loader_is_made_anew_without_links_by_names_that_libraries_claim(provider):
    async def main():
        box = await provider.create(SandboxSpec())
        box.on(
            "/sbin/ldconfig -X",
            lambda call: ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0),
        )
        changes = FileChanges(changed=("/etc/ld.so.cache",))
        rules = TamperRules.of(b"true", DIRS, PATH)
        return await integrity_report(box, changes, rules, user="root")

    assert asyncio.run(main())["grade"] == "clean"


def asked(provider, stdout, **more):
    async def main():
        told = ExecResult(exit_code=0, stdout=stdout, stderr="", duration_sec=0, **more)
        box = await provider.create(SandboxSpec())
        box.on("/bin/sh -c for n in PATH", lambda call: told)
        return await list_search_paths(box, user="", env={}, workdir="/app")

    return asyncio.run(main())


def test_a_box_says_its_variables_names_and_plugins(provider):
    site = "/usr/lib/python3/dist-packages"
    records = ["vPATH=/usr/bin:/bin", f"f{site}/six.py", f"f{site}/requests", "f/lib/libz.so.1"]
    records += ["e[]", "e[pytest11]", "eanyio = anyio.plugin:x", "e[]", "eother = thing", "end"]
    found = asked(provider, "".join(f"{each}\0" for each in records))
    assert found.directories("PATH", "/") == ["/usr/bin", "/bin"]
    assert found.packages == {"six", "requests"}
    assert found.libraries == {"libz.so.1"}
    assert found.plugins == {"anyio"}
    assert found.without([f"{site}/six.py"]).packages == {"requests"}


@pytest.mark.parametrize("stdout", ["", "vPATH=/bin\0", "end", "f/bin/x"])
def test_a_box_that_does_not_say_all_of_it_vouches_for_nothing(provider, stdout):
    with pytest.raises(RewardError, match="cannot be listed"):
        asked(provider, stdout)
