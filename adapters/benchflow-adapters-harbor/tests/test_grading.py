import asyncio
import json
from dataclasses import replace

import pytest
from benchflow_adapters_harbor.grading import HARBOR
from benchflow_adapters_harbor.grading.protocol import AddTestsDirError, DownloadVerifierDirError
from benchflow_contracts import (
    NO_REWARDS,
    ExecResult,
    RewardError,
    SandboxError,
    SandboxSpec,
    TransferError,
)
from benchflow_reward import ScriptVerifier
from benchflow_reward.errors import TwoRewardFilesError, VerifierTimeoutError
from benchflow_testing.fakes import FakeSandbox

PREPARE = "/bin/sh -c set -eu\numask"
RUN = "/bin/sh -c for b in"
CLEAR = "/bin/sh -c set -eu\nfor p in"
MODES = ["hermetic", "twin", "shared"]


def ok(stdout: str = "", exit_code: int = 0, stderr: str = "") -> ExecResult:
    return ExecResult(exit_code=exit_code, stdout=stdout, stderr=stderr, duration_sec=0.1)


def prepare(call):
    files = call.sandbox.files
    there = files.exists("/tests")
    owner, mode, *gone = call.cmd[4:]
    for path in ("/logs/verifier", *gone):
        if files.exists(path):
            files.remove(path, recursive=True)
    files.mkdir("/logs/verifier", parents=True, owner=owner, mode=int(mode, 8))
    return ok("tests\n" if there else "")


def leaves(**reward_files):
    def run(call):
        for name, text in reward_files.items():
            call.sandbox.files.put(f"/logs/verifier/{name.replace('_', '.')}", text)
        call.sandbox.files.put("/logs/verifier/test-stdout.txt", "said")

    return run


@pytest.fixture
def score(provider, make_task, make_case):
    """Grade the agent's box by Harbor's protocol; `test` is what test.sh does."""
    provider.on(PREPARE, prepare)
    provider.on(CLEAR, lambda call: ok())
    provider.on("/bin/sh -c set -u", lambda call: ok("\n"))

    def run(test, mode="twin", artifacts=(), continues=False, **verifier):
        async def done(call):
            result = test(call)
            return (await result if asyncio.iscoroutine(result) else result) or ok()

        provider.on(RUN, done)
        task = make_task(artifacts=artifacts, verifier=verifier)
        node, evidence = make_case(task=task)
        evidence = replace(evidence, world=replace(evidence.world, continues=continues))
        return asyncio.run(ScriptVerifier(isolation=mode, protocol=HARBOR).score(node, evidence))

    return run


@pytest.mark.parametrize("mode", MODES)
def test_every_number_is_a_reward_and_the_exit_code_is_only_recorded(score, mode, tmp_path):
    def test(call):
        leaves(reward_json='{"a": 2, "b": true}')(call)
        return ok(exit_code=1)

    result = score(test, mode)
    assert (result.reward, result.items, result.grading) == (1.5, {"a": 2, "b": 1}, mode)
    assert result.meta["exit_code"] == 1
    assert (tmp_path / "verifier" / "test-stdout.txt").read_text() == "said"
    assert json.loads((tmp_path / "verifier" / "reward.json").read_text()) == {"a": 2, "b": True}


BOTH = leaves(reward_json='{"reward": 1}', reward_txt="0")


@pytest.mark.parametrize("mode", MODES)
def test_two_reward_files_are_an_error(score, mode):
    with pytest.raises(TwoRewardFilesError, match=r"reward\.json and reward\.txt") as caught:
        score(BOTH, mode)
    assert "--reward-files open" in caught.value.hint


@pytest.mark.parametrize("mode", MODES)
def test_by_harbors_rule_json_is_read_first_and_the_verdict_says_so(score, mode):
    result = score(BOTH, mode, reward_files="open")
    assert (result.reward, result.meta["reward_files"]) == (1, "open")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("verifier", "owner", "access"),
    [
        ({"user": "root"}, "root", 0o700),
        ({"user": ""}, "agent", 0o700),
        ({"user": "", "reward_files": "open"}, "root", 0o777),
    ],
)
def test_the_verifiers_user_owns_the_reward_directory(score, mode, verifier, owner, access):
    seen = []

    def test(call):
        found = call.sandbox.files.entry("/logs/verifier")
        seen.append((found.owner, found.mode))
        leaves(reward_txt="1")(call)

    assert score(test, mode, **verifier).meta["reward_files"] == verifier.get(
        "reward_files", "strict"
    )
    assert seen == [(owner, access)]


def test_rewards_without_numbers_give_no_reward(score):
    result = score(leaves(reward_json="{}"))
    assert (result.reward, result.items, result.error_type) == (None, {}, NO_REWARDS)
    assert "no reward" in result.error


@pytest.mark.parametrize("mode", MODES)
def test_variables_user_and_directory_are_those_of_the_task(score, provider, mode):
    calls = []
    score(
        lambda call: calls.append(call) or leaves(reward_txt="1")(call),
        mode,
        env={"LEVEL": "2"},
        timeout_sec=33,
        user="",
    )
    [call] = calls
    assert (call.user, call.cwd, call.timeout) == ("agent", "/workspace", 33)
    assert call.env["LEVEL"] == "2"
    assert "PYTHONSAFEPATH" not in call.env
    assert call.cmd[-1] == "(/tests/test.sh) > /logs/verifier/test-stdout.txt 2>&1"
    [made] = [call for call in call.sandbox.calls if call.text.startswith("chmod +x")]
    assert (made.user, made.cmd) == ("root", ("chmod", "+x", "/tests/test.sh"))


def test_an_agents_tests_are_gone_and_the_images_are_there_in_a_twin(score, provider, box):
    box.files.put("/tests/planted.sh", "evil")
    box.files.put("/tests/of-the-image", "changed by the agent")
    pristine_create = provider.create

    async def create(spec, *, image=None, identity=None) -> FakeSandbox:
        made = await pristine_create(spec, image=image, identity=identity)
        if image is None:
            made.files.put("/tests/of-the-image", "of the image")
        return made

    provider.create = create
    seen = {}

    def test(call):
        files = call.sandbox.files
        seen.update({path: files.read(path) for path in files.below("/tests")})
        leaves(reward_txt="1")(call)

    assert score(test).reward == 1
    assert seen == {"/tests/of-the-image": b"of the image", "/tests/test.sh": b"#!/bin/bash\n"}
    assert provider.live == []


def test_tests_of_the_image_are_all_there_is_when_the_image_brings_them(score, provider):
    seen = []
    score(
        lambda call: (
            seen.append(call.sandbox.files.exists("/tests/test.sh")) or leaves(reward_txt="1")(call)
        ),
        "hermetic",
        tests_in_image=True,
    )
    assert seen == [False]


@pytest.mark.parametrize("mode", ["twin", "shared"])
def test_only_a_hermetic_grader_has_an_image_with_the_tests(score, mode):
    with pytest.raises(RewardError, match="image of the grading sandbox") as caught:
        score(leaves(reward_txt="1"), mode, tests_in_image=True)
    assert "hermetic" in caught.value.hint


def test_the_graders_own_environment_makes_its_box(score, provider):
    own = {
        "image": "grader",
        "workdir": "/workspace",
        "env": {"A": "1"},
        "keep_entrypoint": True,
    }
    specs = []
    score(
        lambda call: specs.append(call.sandbox.spec) or leaves(reward_txt="1")(call),
        "hermetic",
        environment=own,
    )
    [spec] = specs
    wanted = SandboxSpec(image="grader", env={"A": "1"}, entrypoint="image", limits=spec.limits)
    assert spec == wanted


def test_artifacts_are_where_they_were_and_missing_ones_fail_nothing(score, box, tmp_path):
    box.files.put("/workspace/out/answer", "42", user="agent")
    box.files.link("/etc/passwd", "/workspace/out/link", user="agent")
    box.files.link("/etc/passwd", "/workspace/link", user="agent")
    box.files.put("/logs/artifacts/note", "hi", user="agent")
    seen = {}

    def test(call):
        files = call.sandbox.files
        for top in ("/workspace", "/logs/artifacts"):
            seen.update({p: files.read(p) for p in files.below(top) if not _is_dir(files, p)})
        leaves(reward_txt="1")(call)

    artifacts = ["out", "/workspace/link", "/workspace/none"]
    assert score(test, "hermetic", artifacts).reward == 1
    assert seen == {"/workspace/out/answer": b"42", "/logs/artifacts/note": b"hi"}
    entries = json.loads((tmp_path / "artifacts" / "manifest.json").read_text())
    assert [(e["source"], e["status"]) for e in entries] == [
        ("/logs/artifacts", "ok"),
        ("/workspace/out", "ok"),
        ("/workspace/link", "failed"),
        ("/workspace/none", "failed"),
    ]


def _is_dir(files, path) -> bool:
    entry = files.entry(path)
    return entry is not None and entry.kind == "dir"


@pytest.mark.parametrize("path", ["/tests/x", "/logs/verifier", "/logs", "/usr/bin", "/", "../x"])
def test_an_artifact_cannot_be_the_graders_or_the_systems(score, path):
    with pytest.raises(RewardError, match="artifact"):
        score(leaves(reward_txt="1"), "hermetic", [path])


@pytest.mark.parametrize("mode", ["hermetic", "twin"])
def test_the_agents_box_is_left_alone_when_the_rollout_continues(score, provider, box, mode):
    assert score(leaves(reward_txt="1"), mode, continues=True).reward == 1
    assert provider.live == [box]
    assert len(provider.images) == 0


@pytest.mark.parametrize("mode", MODES)
def test_hooks_are_run_first_and_a_failed_one_is_noted(score, provider, mode, tmp_path):
    ran = []

    def test(call):
        ran.append(call)
        if "(/tests/test.sh)" in call.cmd[-1]:
            leaves(reward_txt="1")(call)
        elif call.cmd[-1] == "gather":
            call.sandbox.files.put("/logs/artifacts/note", "hi")
        else:
            raise SandboxError("no such user")

    hooks = [{"command": "gather", "user": ""}, {"command": "other"}]
    result = score(test, mode, collect=hooks)
    assert [(h["command"], h["exit_code"], h["error"]) for h in result.meta["collect"]] == [
        ("gather", 0, ""),
        ("other", None, "no such user"),
    ]
    assert [call.cmd[-1] for call in ran][:2] == ["gather", "other"]
    assert [call.user for call in ran][:2] == ["agent", "root"]
    assert (tmp_path / "artifacts" / "logs" / "artifacts" / "note").read_text() == "hi"


@pytest.mark.parametrize("mode", MODES)
def test_a_test_that_hangs_is_a_timeout_and_its_output_is_saved(score, mode, tmp_path):
    async def hang(call):
        leaves(reward_txt="1")(call)
        await asyncio.Event().wait()

    with pytest.raises(VerifierTimeoutError):
        score(hang, mode, timeout_sec=0.05)
    assert (tmp_path / "verifier" / "test-stdout.txt").read_text() == "said"


def test_tests_that_cannot_be_placed_are_an_error_of_that_name(score, provider):
    provider.faults.fail_on["upload"] = TransferError("broken", retryable=True)
    with pytest.raises(AddTestsDirError) as caught:
        score(leaves(reward_txt="1"))
    assert caught.value.retryable


def test_logs_that_cannot_be_fetched_are_an_error_of_that_name(score, provider):
    def test(call):
        leaves(reward_txt="1")(call)
        provider.faults.fail_on["download"] = TransferError("broken", retryable=True)

    with pytest.raises(DownloadVerifierDirError) as caught:
        score(test)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("mode", "operation"),
    [
        *((mode, each) for mode in MODES for each in ("upload", "download", "freeze", "exec")),
        ("hermetic", "create"),
        ("twin", "create"),
    ],
)
def test_no_fault_of_the_box_yields_a_reward(score, provider, mode, operation):
    provider.faults.fail_on[operation] = SandboxError("broken", retryable=True)
    with pytest.raises(RewardError):
        score(leaves(reward_txt="1"), mode, ["/workspace/x"])
    assert len(provider.images) == 0
