import asyncio

import pytest
from benchflow_contracts import ExecResult, RewardError, SandboxSpec
from benchflow_reward.script.search_paths import SearchPaths
from benchflow_reward.script.tamper_rules import TamperRules
from benchflow_reward.script.writable_paths import find_writable_paths
from benchflow_testing.fakes import FakeSandboxProvider

PACKAGES = "/usr/lib/python3/dist-packages"


def opened(listing: dict[str, str], *, dropped: int = 0, exit_code: int = 0) -> set[str]:
    """Return what of the added paths is open to others, by what `ls -ldn` prints of each."""

    def answer(call):
        lines = "".join(f"{listing[path]} 4096 Nov 24 05:00 {path}\n" for path in call.cmd[3:])
        return ExecResult(
            exit_code=exit_code, stdout=lines, stderr="", duration_sec=0, stdout_dropped=dropped
        )

    async def main():
        provider = FakeSandboxProvider()
        provider.on("ls -ldn", answer)
        box = await provider.create(SandboxSpec())
        rules = TamperRules.of(
            b"python3 x",
            ["/workspace", "/home", "/root", "/tmp"],
            "/usr/local/bin:/usr/bin",
            ["/usr/lib/python3/dist-packages/expected"],
            pinned=False,
            image=SearchPaths({"HOME": "/root"}),
            workdir="/workspace",
        )
        return await find_writable_paths(box, dict.fromkeys(listing, "added"), rules)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "path",
    [
        *("/etc", "/etc/passwd", "/usr/local", "/usr/bin", PACKAGES, f"{PACKAGES}/x/y.py"),
        *("/usr/lib/x86_64-linux-gnu", "/usr/local/lib/python3.12/site-packages", "/root"),
        *("/root/.local/lib", "/opt/venv/lib/python3.12/json"),
    ],
)
@pytest.mark.parametrize(
    ("mode", "is_open"),
    [
        ("drwxrwxrwx 2 0 0", True),
        ("drwxrwxrwt 2 0 0", True),
        ("-rw-r--rw- 1 0 0", True),
        ("drwxrwxr-x+ 2 0 0", True),
        ("drwxr-xr-x 2 65534 0", True),
        ("drwxrwxr-x 2 0 65534", True),
        ("drwxr-xr-x 2 0 0", False),
        ("drwxrwsr-x 2 0 50", False),
        ("drwxr-xr-x 2 0 65534", False),
        ("lrwxrwxrwx 1 0 0", False),
    ],
)
def test_what_others_may_write_to_is_open_where_programs_look(path, mode, is_open):
    assert opened({path: mode}) == ({path} if is_open else set())


@pytest.mark.parametrize(
    "path",
    [
        *("/workspace/out", "/tmp/x", "/home/agent/x", "/var/www/uploads", "/srv/data"),
        *("/usr/share/doc/x", "/etc/nginx/sites/x", f"{PACKAGES}/expected/x.py"),
        "/workspace/venv/lib/python3.12/site-packages/x.py",
    ],
)
def test_honest_places_may_be_open(path):
    assert opened({path: "drwxrwxrwx 2 0 0"}) == set()


def test_a_list_that_is_not_whole_is_an_error():
    with pytest.raises(RewardError, match="who may write"):
        opened({"/etc": "drwxrwxrwx 2 0 0"}, dropped=1)
    with pytest.raises(RewardError, match="who may write"):
        opened({"/etc": "drwxrwxrwx 2 0 0"}, exit_code=127)
