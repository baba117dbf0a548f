"""Harbor's test protocol in real boxes, in each isolation, on Docker and Local."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_harbor.grading import HARBOR
from benchflow_contracts import (
    Evidence,
    LiveWorld,
    RewardError,
    RolloutNode,
    Sandbox,
    SandboxError,
    SandboxProvider,
    SandboxSpec,
    Task,
    TaskConfig,
    VerifyResult,
)
from benchflow_reward import ScriptVerifier
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider

ANSWERED = "echo 42 > /srv/answer.txt"
CHECKS = """#!/bin/sh
if grep -qx 42 answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit 3
"""
MODES = ["hermetic", "twin", "shared"]


@asynccontextmanager
async def a_provider(kind: str, path: Path) -> AsyncGenerator[SandboxProvider]:
    provider: DockerProvider | LocalProvider
    if kind == "docker":
        provider = DockerProvider(store=path / "store")
    else:
        provider = LocalProvider(store=path / "store")
    try:
        yield provider
    finally:
        await provider.aclose()


@pytest.fixture(params=["docker", "local"])
def grade(request, tmp_path):
    """Let an agent run `script` as root in /srv, then grade its box."""
    if request.param == "docker":
        request.getfixturevalue("image")

    def run(
        script: str, test: str, mode: str, *, continues: bool = False, **verifier: Any
    ) -> Graded:
        config = {
            "name": "demo",
            "artifacts": verifier.pop("artifacts", ["answer.txt"]),
            "environment": {"workdir": "/srv", "user": "root", "env": {"TOLD": "by-the-task"}},
            "verifier": {"user": "", **verifier},
        }
        (tmp_path / "task" / "tests").mkdir(parents=True)
        (tmp_path / "task" / "tests" / "test.sh").write_text(test)
        task = Task(
            id="demo",
            path=tmp_path / "task",
            instruction="",
            config=TaskConfig.model_validate(config),
            digest="0",
        )
        return asyncio.run(_grade(request.param, tmp_path, task, script, mode, continues=continues))

    return run


class Graded(VerifyResult):
    """The verdict, and where the record is."""

    record: Path
    alive: bool
    """Whether the agent's box, with what the agent left running, is still there."""


async def _grade(
    kind: str, path: Path, task: Task, script: str, mode: str, *, continues: bool
) -> Graded:
    environment = task.config.environment
    spec = SandboxSpec(workdir=environment.workdir, user=environment.user, env=environment.env)
    async with a_provider(kind, path) as provider:
        box = await provider.create(spec)
        logs = "mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs/*"
        assert (await box.exec(logs)).ok
        done = await box.exec(script)
        assert done.ok, done
        node = RolloutNode(id="leaf")
        world = LiveWorld(sandbox=box, provider=provider, grading_spec=spec, continues=continues)
        evidence = Evidence(task=task, world=world, log_dir=path / "verifier")
        try:
            result = await ScriptVerifier(isolation=mode, protocol=HARBOR).score(node, evidence)
        except RewardError as error:
            result = VerifyResult.unscored(str(error), error_type=type(error).__name__)
        return Graded(**dict(result), record=path, alive=await _lives(box))


async def _lives(box: Sandbox) -> bool:
    try:
        return (await box.exec('kill -0 "$(cat pid)"')).ok
    except SandboxError:
        return False


def kept(path: Path) -> dict[str, str]:
    """Each entry of the manifest of artifacts with its status."""
    entries = json.loads((path / "artifacts" / "manifest.json").read_text())
    return {entry["source"]: entry["status"] for entry in entries}


@pytest.mark.parametrize("mode", MODES)
def test_the_script_runs_where_and_as_whom_harbor_runs_it(grade, mode):
    test = CHECKS.replace(
        "exit 3", "echo told; pwd; echo warned >&2; id -un; echo $TOLD $MORE; exit 3"
    )
    result = grade(ANSWERED, test, mode, env={"MORE": "by-the-verifier"})
    assert (result.reward, result.items, result.grading) == (1, {"reward": 1}, mode), result
    assert result.meta["exit_code"] == 3
    log = (result.record / "verifier" / "test-stdout.txt").read_text()
    assert log.splitlines() == ["told", "/srv", "warned", "root", "by-the-task by-the-verifier"]
    assert (result.record / "artifacts" / "srv" / "answer.txt").read_text() == "42\n"
    assert kept(result.record) == {"/logs/artifacts": "empty", "/srv/answer.txt": "ok"}


@pytest.mark.parametrize("mode", MODES)
def test_what_lies_in_the_reward_directory_before_the_tests_is_gone(grade, mode):
    forged = (
        "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
    )
    result = grade(forged, "#!/bin/sh\nls -A /logs/verifier\n", mode)
    assert (result.reward, result.error_type) == (None, "RewardFileNotFoundError")


@pytest.mark.parametrize("mode", MODES)
def test_a_verifier_by_number_can_write_its_reward(grade, mode):
    result = grade(ANSWERED, "#!/bin/sh\nid -u > /logs/verifier/reward.txt\n", mode, user="2002")
    assert result.reward == 2002, result


@pytest.mark.parametrize("mode", MODES)
def test_tests_that_do_not_end_are_a_timeout_that_keeps_their_output(grade, mode):
    test = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt; echo begun; sleep 100\n"
    result = grade(ANSWERED, test, mode, timeout_sec=1)
    assert (result.reward, result.error_type) == (None, "VerifierTimeoutError")
    assert (result.record / "verifier" / "test-stdout.txt").read_text() == "begun\n"


@pytest.mark.parametrize("mode", ["hermetic", "twin"])
def test_a_rollout_that_continues_keeps_its_box(grade, mode):
    daemon = f"{ANSWERED}; setsid sleep 300 >/dev/null 2>&1 & echo $! > pid"
    result = grade(daemon, CHECKS, mode, continues=True)
    assert (result.reward, result.alive) == (1, True)


@pytest.mark.parametrize("mode", ["hermetic", "twin"])
def test_a_rollout_that_ends_has_no_box_afterwards(grade, mode):
    assert not grade(ANSWERED, CHECKS, mode).alive


@pytest.mark.parametrize("mode", MODES)
def test_collect_hooks_run_before_anything_is_taken(grade, mode):
    hooks = [
        {"command": "echo late > /logs/artifacts/note; cp /srv/hidden answer.txt", "user": ""},
        {"command": "echo why >&2; exit 4", "user": ""},
    ]
    result = grade("echo 42 > /srv/hidden", CHECKS, mode, collect=hooks)
    assert result.reward == 1
    assert [(hook["exit_code"], hook["error"]) for hook in result.meta["collect"]] == [
        (0, ""),
        (4, "why\n"),
    ]
    assert (result.record / "artifacts" / "logs" / "artifacts" / "note").read_text() == "late\n"


def test_artifacts_come_as_they_were_without_links_pipes_and_start_up_files(grade):
    script = """mkdir -p tree/sub tree/node_modules
cd tree; echo 42 > sub/a; touch b.tmp conftest.py node_modules/x
mkfifo pipe; ln -s /etc/passwd link; ln -s / ../way-out"""
    test = "#!/bin/sh\n(cd tree; find . -type f -o -type l -o -type p) > /logs/verifier/found\n"
    test += "[ ! -e way-out ] && echo 1 > /logs/verifier/reward.txt; cat /logs/verifier/found\n"
    tree = {"source": "tree", "destination": "kept", "exclude": ["*.tmp", "node_modules"]}
    result = grade(script, test, "hermetic", artifacts=[tree, "/srv/missing", "/srv/way-out"])
    assert result.reward == 1, result
    assert (result.record / "verifier" / "test-stdout.txt").read_text() == "./sub/a\n"
    assert kept(result.record) == {
        "/logs/artifacts": "empty",
        "/srv/tree": "ok",
        "/srv/missing": "failed",
        "/srv/way-out": "failed",
    }
    assert (result.record / "artifacts" / "kept" / "sub" / "a").read_text() == "42\n"
    assert not (result.record / "artifacts" / "kept" / "b.tmp").exists()


@pytest.mark.parametrize("mode", MODES)
def test_tests_that_leave_links_in_their_logs_are_read(grade, mode):
    test = "#!/bin/sh\ncd /logs/verifier; ln -s nowhere latest; mkfifo pipe; echo .5 > reward.txt\n"
    assert grade(ANSWERED, test, mode).reward == 0.5


def test_what_an_agent_plants_among_the_tests_is_not_there_in_a_twin(grade):
    planted = "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/helper.sh"
    test = "#!/bin/sh\n. /tests/helper.sh\n"
    result = grade(planted, test, "twin")
    assert (result.reward, result.error_type) == (None, "RewardFileNotFoundError")


AS_NOBODY = """as_nobody() {
  python3 -c 'import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])' "$1"
}
"""
"""What `su nobody -c` does; not every image has it."""
FORGED = """sh -c '
for d in /logs/verifier /logs/verifier/. /proc/self/fd/1/..; do
  echo 1 > $d/reward.txt; echo "{\\"reward\\": 1}" > $d/reward.json
done
mkdir /logs/mine && echo 1 > /logs/mine/reward.txt && mv /logs/verifier /logs/old &&
  mv /logs/mine /logs/verifier
mkdir -p /tmp/logs/verifier && echo 1 > /tmp/logs/verifier/reward.txt && mv /logs /old &&
  mv /tmp/logs /logs
' 2>/dev/null"""
"""Code of the agent's that writes a verdict wherever it may."""
DROPS = f"""#!/bin/sh
{AS_NOBODY}
as_nobody "$(cat /srv/answer.txt)"
as_nobody 'id -un' > /logs/verifier/ran-as.txt
[ "$(cat /logs/verifier/ran-as.txt)" = nobody ] && echo 0 > /logs/verifier/reward.txt
"""
"""Tests that run the agent's code as nobody, and find it wrong."""
PREPARED = {
    "nothing": "true",
    "open": "chmod 777 / /logs /logs/verifier",
    "nobodys": "chown nobody / /logs /logs/verifier",
    "moved": "rm -rf /logs; mkdir -p /tmp/l/verifier; chmod -R 777 /tmp/l; ln -s /tmp/l /logs",
    "linked": "rm -rf /logs/verifier; mkdir -m 777 /tmp/v; ln -s /tmp/v /logs/verifier",
    "closed": "chmod 000 / /logs /logs/verifier",
    "files": "echo 1 > /logs/verifier/reward.json; chmod 666 /logs/verifier/reward.json",
}
"""What root may leave for it."""
INHERITED = """import os, struct
entry = lambda tag, perm, who=0xFFFFFFFF: struct.pack("<HHI", tag, perm, who)
acl = struct.pack("<I", 2) + entry(1, 7) + entry(2, 7, 65534) + entry(4, 7) + entry(16, 7)
for place in ("/", "/logs"):
    for kind in ("access", "default"):
        os.setxattr(place, f"system.posix_acl_{kind}", acl + entry(32, 5))
"""
"""An access control list by which nobody may write to every file that is made there."""
PREPARED["inherited"] = f"cat > /tmp/acl.py <<'END'\n{INHERITED}\nEND\npython3 /tmp/acl.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "prepared"),
    [("hermetic", "nothing"), *((mode, each) for mode in MODES[1:] for each in PREPARED)],
)
def test_code_that_tests_run_as_nobody_cannot_write_the_verdict(grade, mode, prepared):
    script = f"{PREPARED[prepared]}\ncat > /srv/answer.txt <<'END'\n{FORGED}\nEND\n"
    script += "chmod 755 /srv; chmod 644 /srv/answer.txt\n"
    result = grade(script, DROPS, mode)
    assert (result.reward, result.error) == (0, None), result


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_user_can_write_the_verdict_by_harbors_rule(grade, mode):
    script = f"cat > /srv/answer.txt <<'END'\n{FORGED}\nEND\n"
    result = grade(script, DROPS, mode, reward_files="open")
    assert (result.reward, result.meta["reward_files"]) == (1, "open")


@pytest.mark.parametrize("mode", MODES)
def test_two_reward_files_of_the_tests_are_an_error(grade, mode):
    test = (
        "#!/bin/sh\ncd /logs/verifier; echo 1 > reward.txt; echo '{\"reward\": 1}' > reward.json\n"
    )
    result = grade(ANSWERED, test, mode)
    assert (result.reward, result.error_type) == (None, "TwoRewardFilesError")
