import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest
from benchflow_contracts import (
    EnvState,
    EvidenceMissingError,
    ExecResult,
    RewardError,
    SandboxError,
)
from benchflow_reward import ScriptVerifier
from benchflow_reward.script.layout import PINNED_PATH
from benchflow_testing.fakes import FakeCall

PREPARE = "/bin/sh -c set -eu\numask"
CLEAR = "/bin/sh -c set -eu; for p"
RUN = "/bin/sh -c [ ! -x /bin/bash ]"
LISTING = "/bin/sh -c set -u"


def ok(stdout: str = "", exit_code: int = 0, stderr: str = "") -> ExecResult:
    return ExecResult(exit_code=exit_code, stdout=stdout, stderr=stderr, duration_sec=0.1)


def prepare(call: FakeCall) -> ExecResult:
    _, _, _, _, owner, *paths = call.cmd
    files = call.sandbox.files
    for path in paths:
        clear_path(files, path)
        files.mkdir(path, parents=True, owner=owner, mode=0o700)
    return ok()


def clear(call: FakeCall) -> ExecResult:
    for path in call.cmd[4:]:
        clear_path(call.sandbox.files, path)
    return ok()


def clear_path(files, path: str) -> None:
    if files.exists(path):
        files.remove(path, recursive=True)


@pytest.fixture
def verifier(provider):
    """Let a Python function be test.sh; record the calls that ran it."""
    runs: list[FakeCall] = []

    def install(test: Callable[[FakeCall], ExecResult | None]) -> list[FakeCall]:
        def run(call: FakeCall) -> ExecResult:
            runs.append(call)
            return test(call) or ok("out", stderr="err")

        provider.on(RUN, run)
        return runs

    provider.on(PREPARE, prepare)
    provider.on(CLEAR, clear)
    provider.on(LISTING, lambda call: ok("\n"))
    return install


def reward(text: str) -> Callable[[FakeCall], None]:
    return lambda call: call.sandbox.files.put("/logs/verifier/reward.txt", text)


def score(case, **fields):
    return asyncio.run(ScriptVerifier(**fields).score(*case))


def test_the_agents_box_is_dead_before_the_tests_are_in_the_grading_box(
    make_case, verifier, provider, box
):
    runs = verifier(reward("0.5"))
    result = score(make_case())
    assert (result.reward, result.grading, result.error) == (0.5, "hermetic", None)
    [run] = runs
    grading = run.sandbox
    assert grading is not box
    order = provider.log
    assert order.index(("teardown", box.id)) < order.index(("upload", grading.id))
    assert order.index(("freeze", grading.id)) < order.index(("download", grading.id))
    assert provider.live == []


def test_test_sh_runs_pinned(make_case, make_task, verifier):
    runs = verifier(reward("1"))
    task = make_task(verifier={"env": {"LEVEL": "2"}, "timeout_sec": 33})
    score(make_case(task=task))
    [run] = runs
    assert (run.user, run.cwd, run.timeout) == ("root", "/", 33)
    assert run.env["PATH"] == PINNED_PATH
    assert run.env["PYTHONSAFEPATH"] == "1"
    assert run.env["PYTEST_ADDOPTS"].startswith("-c /dev/null")
    assert (run.env["LEVEL"], run.env["HOME"], run.env["LANG"]) == ("2", "/root", "C")
    assert not {"PYTHONPATH", "LD_PRELOAD", "BASH_ENV"} & run.env.keys()


def test_only_declared_artifacts_reach_the_grading_box(make_case, make_task, verifier, box):
    box.files.put("/workspace/out/answer.txt", "42", user="agent", mode=0o600)
    box.files.put("/workspace/out/conftest.py", "evil", user="agent")
    box.files.put("/workspace/other.txt", "evil", user="agent")
    box.files.put("/logs/verifier/reward.txt", "1", user="agent")
    seen = {}

    def test(call):
        files = call.sandbox.files
        seen.update({path: files.entry(path) for path in files.below("/workspace")})
        assert not files.exists("/logs/verifier/reward.txt")
        reward("1")(call)

    verifier(test)
    result = score(make_case(task=make_task(artifacts=["/workspace/out", "/workspace/none"])))
    assert {path for path, entry in seen.items() if entry.kind == "file"} == {
        "/workspace/out/answer.txt"
    }
    answer = seen["/workspace/out/answer.txt"]
    assert (answer.owner, answer.mode) == ("root", 0o644)
    assert result.meta["artifacts"] == {"/workspace/out": "copied", "/workspace/none": "absent"}
    assert result.meta["stripped"] == ["/workspace/out/conftest.py"]


def test_a_hermetic_verdict_tells_what_its_box_was_made_from(make_case, make_task, verifier):
    verifier(reward("1"))
    result = score(make_case(task=make_task(verifier={"environment": {"image": "judge"}})))
    assert result.meta["image"] == f"sha256:{sha256(b'judge').hexdigest()}"


def test_what_the_agent_deleted_is_gone_in_the_grading_box_too(make_case, make_task, verifier):
    task = make_task(artifacts=["/workspace/old.txt"])
    task_files = task.path / "environment" / "files"
    (task_files / "workspace").mkdir(parents=True)
    (task_files / "workspace" / "old.txt").write_text("old")
    (task_files / "workspace" / "kept.txt").write_text("kept")
    seen = []
    verifier(lambda call: seen.extend(call.sandbox.files.below("/workspace")) or reward("1")(call))
    score(make_case(task=task))
    assert seen == ["/workspace/kept.txt"]


def test_an_artifact_that_cannot_be_copied_is_a_failed_submission(
    make_case, make_task, verifier, box, provider
):
    runs = verifier(reward("1"))
    box.files.link("/etc/passwd", "/workspace/answer.txt", user="agent")
    task = make_task(artifacts=["/workspace/answer.txt"], verifier={"reward_range": [-1, 1]})
    result = score(make_case(task=task))
    assert result.reward == -1
    assert result.items == {"artifacts_refused": 1}
    assert "/workspace/answer.txt" in result.meta["refused"]
    assert runs == []
    assert provider.live == []


@pytest.mark.parametrize(
    "path",
    [
        *("relative", "/", "/tests", "/tests/x", "/logs", "/logs/verifier/reward.txt", "/etc"),
        *("/evidence/x", "/usr", "/usr/bin", "/proc/1/environ", "/a/../tests", "//tests"),
    ],
)
def test_an_artifact_cannot_be_the_graders_or_the_systems(make_case, make_task, verifier, path):
    verifier(reward("1"))
    with pytest.raises(RewardError, match="artifact"):
        score(make_case(task=make_task(artifacts=[path])))


def test_the_tests_see_the_steps_and_the_state(make_case, make_task, verifier, step):
    seen = {}

    def test(call):
        for name in ("steps.jsonl", "env_state.json"):
            seen[name] = call.sandbox.files.read(f"/evidence/{name}").decode()
        reward("1")(call)

    verifier(test)
    steps = [step(message="a"), step(message="\ud800")]
    state = EnvState(files={"/x": "sha256:1"})
    score(make_case(*steps, env_state=state))
    lines = seen["steps.jsonl"].splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["a", "\ud800"]
    assert EnvState.model_validate_json(seen["env_state.json"]) == state


def test_the_untrusted_runner_is_there_only_when_declared(make_case, make_task, verifier):
    seen = []
    verifier(
        lambda call: (
            seen.append(call.sandbox.files.exists("/tests-tools/run_untrusted.py"))
            or reward("1")(call)
        )
    )
    score(make_case())
    assert seen == [False]


def test_the_untrusted_runner_is_uploaded_when_declared(make_case, make_task, verifier):
    seen = []
    verifier(
        lambda call: (
            seen.append(call.sandbox.files.read("/tests-tools/run_untrusted.py"))
            or reward("1")(call)
        )
    )
    score(make_case(task=make_task(verifier={"executes_artifacts": True})))
    assert b"UntrustedError" in seen[0]


def test_output_and_reward_files_are_kept(make_case, verifier, tmp_path):
    verifier(reward("0.25\n"))
    score(make_case())
    assert (tmp_path / "verifier" / "test-stdout.txt").read_text() == "out\n--- stderr ---\nerr"
    assert (tmp_path / "verifier" / "reward.txt").read_text() == "0.25\n"


def test_huge_output_is_capped_with_its_end_kept(make_case, verifier, tmp_path):
    verifier(lambda call: reward("1")(call) or ok("x" * 5_000_000 + "THE END"))
    score(make_case())
    log = tmp_path / "verifier" / "test-stdout.txt"
    assert log.stat().st_size < 1_100_000
    assert "THE END" in log.read_text()


def test_json_carries_items(make_case, verifier):
    document = '{"reward": 0.5, "recall": 0.9, "metadata": {"n": 3}}'
    verifier(lambda call: call.sandbox.files.put("/logs/verifier/reward.json", document))
    result = score(make_case())
    assert (result.reward, result.items) == (0.5, {"recall": 0.9})
    assert result.meta["metadata"] == {"n": 3}
    assert result.meta["exit_code"] == 0


def both_files(call):
    reward("1")(call)
    call.sandbox.files.put("/logs/verifier/reward.json", '{"reward": 1}')


def linked_reward(call):
    call.sandbox.files.put("/logs/verifier/other", "1")
    call.sandbox.files.link("/logs/verifier/other", "/logs/verifier/reward.txt")


@pytest.mark.parametrize(
    "test",
    [lambda call: None, both_files, linked_reward, reward("2"), reward("nan")],
    ids=["none", "both", "link", "range", "nan"],
)
def test_no_valid_reward_file_is_no_verdict(make_case, verifier, provider, test):
    verifier(test)
    with pytest.raises(RewardError):
        score(make_case())
    assert provider.live == []


def test_a_crash_of_hermetic_tests_is_no_verdict(make_case, verifier):
    verifier(lambda call: reward("1")(call) or ok(exit_code=1))
    with pytest.raises(RewardError, match="exit code 1"):
        score(make_case())


@pytest.mark.parametrize("mode", ["twin", "shared"])
def test_foreign_tests_may_end_with_any_exit_code(make_case, verifier, mode):
    verifier(lambda call: reward("1")(call) or ok(exit_code=1))
    result = score(make_case(), isolation=mode)
    assert (result.reward, result.grading, result.meta["exit_code"]) == (1, mode, 1)


@pytest.mark.parametrize("mode", ["hermetic", "twin", "shared"])
def test_a_hung_test_is_a_verifier_timeout(make_case, make_task, provider, mode):
    provider.on(PREPARE, prepare)
    provider.on(LISTING, lambda call: ok("\n"))

    async def hang(call):
        await asyncio.Event().wait()

    provider.on(RUN, hang)
    task = make_task(verifier={"timeout_sec": 0.05})
    with pytest.raises(RewardError, match="verifier_timeout"):
        score(make_case(task=task), isolation=mode)
    assert len(provider.live) == (1 if mode == "shared" else 0)


def test_setup_is_applied_in_the_kernels_order(make_case, make_task, verifier, provider):
    order = []
    commands = [{"command": "make-world", "user": "root", "cwd": "/", "env": {"A": "1"}}]
    task = make_task(environment={"setup_commands": commands})
    (task.path / "environment/files").mkdir(parents=True)
    (task.path / "environment/files/seed.txt").write_text("seed")

    def setup(call):
        seeded = call.sandbox.files.exists("/seed.txt")
        order.append((seeded, call.env["A"], call.env["PYTHONPATH"]))
        return ok()

    provider.on("make-world", setup)
    verifier(reward("1"))
    assert score(make_case(task=task)).reward == 1
    assert order == [(True, "1", "/evil")]


def test_a_failed_setup_command_is_no_verdict(make_case, make_task, verifier, provider):
    task = make_task(environment={"setup_commands": [{"command": "make-world", "cwd": "/"}]})
    provider.on("make-world", lambda call: ok(exit_code=3))
    verifier(reward("1"))
    with pytest.raises(RewardError, match="make-world"):
        score(make_case(task=task))
    assert provider.live == []


@pytest.mark.parametrize("operation", ["create", "upload", "download", "freeze", "exec"])
@pytest.mark.parametrize("mode", ["hermetic", "twin"])
def test_no_fault_of_the_box_yields_a_reward(
    make_case, make_task, provider, verifier, mode, operation
):
    verifier(reward("1"))
    provider.faults.fail_on[operation] = SandboxError("broken", retryable=True)
    with pytest.raises(RewardError) as caught:
        score(make_case(task=make_task(artifacts=["/workspace/x"])), isolation=mode)
    assert caught.value.retryable
    assert len(provider.images) == 0


def test_a_task_without_test_sh_is_no_verdict(make_case, make_task, verifier, tests_dir):
    verifier(reward("1"))
    task = make_task()
    (tests_dir / "test.sh").unlink()
    with pytest.raises(RewardError, match=r"no tests/test\.sh"):
        score(make_case(task=task))


@pytest.mark.parametrize("missing", ["task", "world"])
def test_missing_evidence_is_an_error_that_names_it(make_case, missing):
    node, evidence = make_case()
    with pytest.raises(EvidenceMissingError, match=f"'reward' needs .*{missing}"):
        score((node, replace(evidence, **{missing: None})))


def test_a_twin_grades_a_copy_of_the_final_files(make_case, verifier, provider, box):
    box.files.put("/workspace/answer.txt", "42", user="agent")
    box.files.put("/tests/planted.py", "evil")
    seen = []

    def test(call):
        seen.append(call.sandbox.files.read("/workspace/answer.txt"))
        assert not call.sandbox.files.exists("/tests/planted.py")
        assert call.sandbox.files.exists("/tests/test.sh")
        reward("1")(call)

    [*_] = verifier(test)
    result = score(make_case(), isolation="twin")
    assert (result.reward, result.grading, seen) == (1, "twin", [b"42"])
    assert result.meta["integrity"]["grade"] == "clean"
    assert provider.live == []
    assert len(provider.images) == 0
    order = provider.operations
    assert order.index("freeze") < order.index("snapshot") < order.index("teardown")


def test_a_shared_box_is_graded_as_it_is(make_case, verifier, provider, box):
    box.files.put("/workspace/planted.txt", "x", user="agent")
    box.files.put("/logs/verifier/reward.txt", "1")
    runs = verifier(reward("0"))
    result = score(make_case(), isolation="shared")
    assert (result.reward, result.grading) == (0, "shared")
    assert runs[0].sandbox is box
    assert runs[0].cwd == "/workspace"
    assert "PYTHONSAFEPATH" not in runs[0].env
    assert provider.live == [box]


def test_the_host_keeps_no_copy_of_what_it_graded(
    make_case, make_task, verifier, box, tmp_path, monkeypatch
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    box.files.put("/workspace/x", "42", user="agent")
    held = []
    verifier(lambda call: held.append(list(scratch.glob("*/grading-*"))) or reward("1")(call))
    score(make_case(task=make_task(artifacts=["/workspace/x"])))
    assert len(held[0]) == 1
    assert [path.name for path in scratch.glob("*/*")] == [".lock"]
