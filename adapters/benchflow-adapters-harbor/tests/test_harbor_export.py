"""Rollouts as Harbor's jobs and trials; Harbor's own models judge them in `tests/e2e`."""

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_harbor.export import HarborExporter
from benchflow_contracts import (
    NO_REWARDS,
    FinishedRollout,
    ModelCall,
    NodeError,
    NodeFailed,
    NodeScored,
    PhaseEntered,
    RolloutNode,
    RolloutStarted,
    RolloutTree,
    StoreError,
    Usage,
    VerifyResult,
)
from benchflow_testing import check_exporter
from benchflow_testing.fakes import fake_finished_rollout, fake_hostile_rollout


def written(path: Path) -> Any:
    return json.loads(path.read_text())


def exported(home: Path, *rollouts: FinishedRollout) -> dict[str, dict[str, Any]]:
    """Export a job; return what is in each trial's directory, by leaf."""
    HarborExporter().export("job", rollouts, home)
    trials = sorted(each for each in home.iterdir() if each.is_dir())
    return {
        trial.name.rpartition("__")[2]: {
            "result": written(trial / "result.json"),
            "trajectory": written(trial / "agent" / "trajectory.json"),
        }
        for trial in trials
    }


def test_the_exporter_keeps_every_promise():
    results = asyncio.run(check_exporter(HarborExporter()))
    assert [result for result in results if result.status != "passed"] == []


def test_a_shared_prefix_is_original_in_the_first_scored_leaf_and_a_copy_in_the_others(tmp_path):
    trials = exported(tmp_path, fake_finished_rollout())
    steps = {leaf: trial["trajectory"]["steps"] for leaf, trial in trials.items()}

    def marks(leaf: str) -> list[bool]:
        return [step.get("is_copied_context", False) for step in steps[leaf]]

    # Prompt, look, ask; then the answer and what follows it.
    assert marks("n4") == [False, False, False, False, False]
    assert marks("n3") == marks("n5") == [True, True, True, False, False]
    for leaf in ("n3", "n5"):
        for copy, original in zip(steps[leaf][:3], steps["n4"][:3], strict=True):
            assert copy == {**original, "is_copied_context": True}
    assert [step["step_id"] for step in steps["n5"]] == [1, 2, 3, 4, 5]


def test_an_ask_is_a_tool_call_of_the_fork_and_each_answer_the_users_own_step(tmp_path):
    trials = exported(tmp_path, fake_finished_rollout())
    for leaf, colour in (("n3", "red"), ("n4", "green"), ("n5", "blue")):
        *_, asked, answered, acted = trials[leaf]["trajectory"]["steps"]
        [call] = asked["tool_calls"]
        assert call["function_name"] == "ask_user"
        assert call["arguments"]["questions"][0]["options"] == ["red", "green", "blue"]
        assert "observation" not in asked
        assert (answered["source"], answered["message"]) == ("user", colour)
        assert acted["message"] == f"It is {colour}."


def test_an_unscored_leaf_is_an_exception_without_rewards_and_in_no_mean(tmp_path):
    trials = exported(tmp_path, fake_finished_rollout())
    lost, good = trials["n3"]["result"], trials["n4"]["result"]
    assert lost["verifier_result"] is None
    assert lost["exception_info"]["exception_type"] == "AgentTimeoutError"
    assert "give it more time" in lost["exception_info"]["exception_traceback"]
    assert not (tmp_path / lost["trial_name"] / "verifier" / "reward.json").exists()
    assert (tmp_path / lost["trial_name"] / "exception.txt").read_text() == (
        "AgentTimeoutError: no end\n"
    )
    assert good["exception_info"] is None
    assert good["verifier_result"] == {"rewards": {"reward": 1.0, "even": 1.0}}
    assert good["verifier_environment_mode"] == "separate"

    job = written(tmp_path / "result.json")
    assert job["n_total_trials"] == 3
    [stats] = job["stats"]["evals"].values()
    assert (stats["n_trials"], stats["n_errors"]) == (2, 1)
    assert stats["metrics"] == [{"reward": 0.75, "even": 0.5}]


@pytest.mark.parametrize(
    ("asked", "mode"), [("hermetic", "separate"), ("twin", "shared"), (None, None)]
)
def test_a_leaf_without_a_verdict_has_the_mode_that_grading_would_use(tmp_path, asked, mode):
    rollout = fake_finished_rollout()
    rollout.tree.meta = {"grading": asked}
    rollout.tree.index["n4"].results["reward"] = VerifyResult.unscored("broke")
    trials = exported(tmp_path, rollout)
    found = [trials[leaf]["result"]["verifier_environment_mode"] for leaf in ("n3", "n4", "n5")]
    assert found == [mode, mode, "separate"]


def test_the_images_of_a_trial_are_among_the_facts_that_harbor_has_no_field_for(tmp_path):
    rollout = fake_finished_rollout()
    rollout.tree.images = {"main": "base@sha256:1", "db": "sha256:2"}
    graded = VerifyResult(reward=1.0, grading="hermetic", meta={"image": "sha256:3"})
    rollout.tree.index["n4"].results["reward"] = graded
    facts = exported(tmp_path, rollout)["n4"]["result"]["agent_result"]["metadata"]["benchflow"]
    assert (facts["images"], facts["verifier_image"]) == (rollout.tree.images, "sha256:3")


def test_a_leaf_that_was_graded_after_its_agent_failed_has_both(tmp_path):
    rollout = fake_finished_rollout()
    rollout.tree.index["n4"].error = NodeError(boundary="agent", type="AgentError", message="died")
    result = exported(tmp_path, rollout)["n4"]["result"]
    assert result["exception_info"]["exception_type"] == "AgentError"
    assert result["verifier_result"]["rewards"]["reward"] == 1.0


def test_the_cause_of_a_missing_score_is_named(tmp_path):
    def kind(number: int, **changes: Any) -> tuple[str, str]:
        rollout = fake_finished_rollout()
        leaf = rollout.tree.index["n3"]
        leaf.error = None
        for name, value in changes.items():
            setattr(leaf if name == "results" else rollout.tree, name, value)
        home = tmp_path / str(number)
        home.mkdir()
        told = exported(home, rollout)["n3"]["result"]["exception_info"]
        return told["exception_type"], told["exception_message"]

    failed = NodeError(boundary="sandbox", type="SandboxError", message="no box")
    unscored = {"reward": VerifyResult.unscored("no reward file")}
    assert kind(1) == ("RewardError", "it was never graded")
    assert kind(2, results=unscored, error=failed) == ("RewardError", "no reward file")
    assert kind(3, error=failed) == ("RuntimeError", "no box")
    assert kind(4, status="cancelled")[0] == "CancelledError"
    assert kind(5, status="running")[1] == "the rollout has not ended"


def test_a_task_of_harbors_keeps_the_names_of_its_rewards_and_errors(tmp_path):
    rollout = dataclasses.replace(fake_finished_rollout(), task_format="harbor")
    leaves = rollout.tree.index
    leaves["n4"].results = {"reward": VerifyResult(reward=0.5, items={"style": 0.0, "speed": 1.0})}
    leaves["n3"].error = None
    unscored = VerifyResult.unscored("empty", error_type="RewardFileEmptyError")
    leaves["n3"].results = {"reward": unscored}
    sick = NodeError(boundary="environment", type="ReadinessError", message="no db")
    leaves["n5"].error = sick
    trials = exported(tmp_path, rollout)
    assert trials["n4"]["result"]["verifier_result"] == {"rewards": {"style": 0.0, "speed": 1.0}}
    kinds = [trials[leaf]["result"]["exception_info"]["exception_type"] for leaf in ("n3", "n5")]
    assert kinds == ["RewardFileEmptyError", "HealthcheckError"]


def test_a_rollout_that_could_not_begin_is_a_trial_without_a_trajectory(tmp_path):
    root = RolloutNode(id="n0")
    tree = RolloutTree(
        rollout_id="paint__9",
        task_id="paint",
        root=root,
        index={"n0": root},
        status="failed",
        error=NodeError(boundary="task", type="TaskError", message="no image"),
    )
    rollout = dataclasses.replace(fake_finished_rollout(), tree=tree, model=None)
    said = HarborExporter().export("job", [rollout], tmp_path)
    assert (said.trajectories, said.unscored) == (1, 1)
    assert written(tmp_path / "paint__9" / "result.json")["source"] is None
    assert not (tmp_path / "paint__9" / "agent" / "trajectory.json").exists()
    assert written(tmp_path / "result.json")["stats"]["n_errored_trials"] == 1


def test_the_tokens_of_the_trials_add_up_to_the_real_use(tmp_path):
    trials = exported(tmp_path, fake_finished_rollout())
    total = written(tmp_path / "result.json")["stats"]
    assert [total[f"n_{kind}_tokens"] for kind in ("input", "cache", "output")] == [10, 2, 4]
    sums = [trial["trajectory"]["final_metrics"] for trial in trials.values()]
    assert [each.get("total_prompt_tokens") for each in sums] == [None, 10, None]
    assert [each["total_steps"] for each in sums] == [2, 5, 2]


def test_the_steps_of_the_rollout_that_was_gone_on_from_are_copies_in_every_trial(tmp_path):
    rollout = fake_finished_rollout()
    origin = {"rollout_id": "paint__0", "node": "n2", "ref": "kept"}
    began = RolloutStarted(seq=0, ts=102.5, rollout_id="x", task_id="x", root="n0")
    rollout.tree.meta = {"continued_from": origin}
    trials = exported(tmp_path, dataclasses.replace(rollout, events=[began]))
    for trial in trials.values():
        marks = [step.get("is_copied_context", False) for step in trial["trajectory"]["steps"]]
        assert marks == [True, True, True, False, False]
        facts = trial["result"]["agent_result"]["metadata"]["benchflow"]
        assert facts["continued_from"] == origin
    assert "n_input_tokens" not in written(tmp_path / "result.json")["stats"]


def model_call(ident: str, **more: Any) -> ModelCall:
    fields = {
        "id": ident,
        "node": "n1",
        "api": "openai-chat",
        "request": {},
        "status": 200,
        "model": "exact",
        "prompt_token_ids": (1, 2),
        "completion_token_ids": (3,),
        "logprobs": (-0.5,),
        "usage": Usage(input_tokens=2, output_tokens=1),
        "cost_usd": 0.25,
        "started_at": 1,
        "finished_at": 2,
    }
    return ModelCall(**{**fields, **more})


def with_calls(*calls: ModelCall) -> FinishedRollout:
    rollout = fake_finished_rollout()
    node = rollout.tree.index["n1"]
    assert node.step is not None
    node.step = node.step.model_copy(update={"model_calls": tuple(call.id for call in calls)})
    return dataclasses.replace(rollout, calls={call.id: call for call in calls})


def test_recorded_tokens_are_exact_and_calls_beside_the_work_are_left_out(tmp_path):
    trials = exported(tmp_path, with_calls(model_call("a"), model_call("b", purpose="aux")))
    step = trials["n4"]["trajectory"]["steps"][1]
    assert step["metrics"]["prompt_token_ids"] == [1, 2]
    assert step["metrics"]["completion_token_ids"] == [3]
    assert step["metrics"]["logprobs"] == [-0.5]
    assert (step["llm_call_count"], step["model_name"]) == (1, "exact")
    for leaf, copied in (("n4", False), ("n5", True)):
        [detail] = trials[leaf]["result"]["agent_result"]["rollout_details"]
        assert detail["completion_token_ids"] == [[3]]
        assert detail["extra"] == {"is_copied_context": [copied]}


def test_a_step_of_two_calls_has_sums_and_its_tokens_call_by_call(tmp_path):
    result = exported(tmp_path, with_calls(model_call("a"), model_call("b")))["n4"]
    metrics = result["trajectory"]["steps"][1]["metrics"]
    assert (metrics["prompt_tokens"], metrics["cost_usd"]) == (4, 0.5)
    assert "prompt_token_ids" not in metrics
    [detail] = result["result"]["agent_result"]["rollout_details"]
    assert detail["prompt_token_ids"] == [[1, 2], [1, 2]]


def test_one_call_without_tokens_leaves_no_half_of_a_rollout_to_train_on(tmp_path):
    unknown = model_call("b", prompt_token_ids=None, completion_token_ids=None, logprobs=None)
    result = exported(tmp_path, with_calls(model_call("a"), unknown))["n4"]["result"]
    assert result["agent_result"]["rollout_details"] is None


def test_hostile_text_comes_out_as_plain_ascii_json_of_bounded_size(tmp_path):
    exported(tmp_path, fake_hostile_rollout())
    [trial] = [each for each in tmp_path.iterdir() if each.is_dir()]
    raw = (trial / "agent" / "trajectory.json").read_bytes()
    assert raw.isascii()
    assert b"\x1b" not in raw
    assert len(raw) < 1_100_000
    # What is not UTF-8 cannot be said in JSON that strict readers take.
    assert b"\\ud800" not in raw
    steps = json.loads(raw)["steps"]
    first, _, text = steps[1]["tool_calls"]
    assert "\ufffd" in first["function_name"]
    assert text["arguments"] == {"input": [steps[0]["message"]]}
    results = steps[1]["observation"]["results"]
    assert results[0]["source_call_id"] == first["tool_call_id"]
    assert "source_call_id" not in results[1]
    assert results[1]["content"].endswith("more characters)")


@pytest.mark.parametrize("rollout_id", ["../../etc", "a/b", "", ".hidden", "x" * 300, "a\nb"])
def test_a_name_that_is_not_a_file_name_is_refused(tmp_path, rollout_id):
    with pytest.raises(StoreError, match="cannot be the name of a trial"):
        HarborExporter().export("job", [fake_hostile_rollout(rollout_id)], tmp_path)


def test_the_output_of_the_tests_is_exported_and_a_link_is_not_followed(tmp_path):
    source, target, secret = tmp_path / "rollout", tmp_path / "out", tmp_path / "secret"
    secret.write_text("secret")
    for world in ("branches/n4", "branches/n5"):
        (source / world / "verifier").mkdir(parents=True)
    (source / "branches/n4/verifier/test-stdout.txt").write_bytes(b"4 passed \xff\n")
    (source / "branches/n5/verifier/test-stdout.txt").symlink_to(secret)
    target.mkdir()
    rollout = dataclasses.replace(fake_finished_rollout(), directory=source)
    exported(target, rollout)
    kept = {path.parts[-3]: path.read_text() for path in target.rglob("test-stdout.txt")}
    assert kept == {"paint__0001__n4": "4 passed \ufffd\n"}


def test_the_times_of_a_trial_are_those_of_its_phases(tmp_path):
    phases = ["setup", "connect", "execute", "verify"]
    events = [
        PhaseEntered(seq=i, ts=90.0 + i, node="n0", phase=phase) for i, phase in enumerate(phases)
    ]
    events.append(
        NodeScored(seq=9, ts=99.0, node="n4", name="reward", result=VerifyResult(reward=1.0))
    )
    rollout = dataclasses.replace(fake_finished_rollout(), events=events)
    result = exported(tmp_path, rollout)["n4"]["result"]
    assert result["started_at"] == "1970-01-01T00:01:30+00:00"
    assert result["agent_setup"] == {
        "started_at": "1970-01-01T00:01:31+00:00",
        "finished_at": "1970-01-01T00:01:32+00:00",
    }
    assert result["verifier"]["finished_at"] == result["finished_at"]
    assert result["verifier"]["started_at"] == "1970-01-01T00:01:33+00:00"


def stepped() -> FinishedRollout:
    """A forked rollout of a task of two steps: `look` ended before the fork."""
    rollout = fake_finished_rollout()
    node, (lost, good, fair) = rollout.tree.index["n1"], rollout.tree.leaves
    late = NodeError(boundary="agent", type="AgentTimeoutError", message="late")
    seen = VerifyResult(reward=0.0, items={"seen": 1.0}, grading="twin")
    node.error, node.results["look/reward"] = late, seen
    rollout = dataclasses.replace(
        rollout,
        events=[
            NodeFailed(seq=0, ts=101.0, node="n1", error=late),
            PhaseEntered(seq=1, ts=101.25, node="n0", phase="verify"),
            NodeScored(seq=2, ts=101.5, node="n1", name="look/reward", result=seen),
        ],
    )
    for leaf, result in ((good, 1.0), (fair, 0.5)):
        leaf.results["paint/reward"] = VerifyResult(reward=result, grading="twin")
        leaf.results["reward"] = VerifyResult(reward=result / 2, grading="twin")
    broken = VerifyResult.unscored("no file", error_type="RewardFileNotFoundError")
    lost.results["paint/reward"] = lost.results["reward"] = broken
    lost.error = None
    return rollout


def test_each_graded_step_of_the_task_is_a_step_result_with_a_directory(tmp_path):
    trials = exported(tmp_path, stepped())
    result = trials["n4"]["result"]
    look, paint = result["step_results"]
    assert (look["step_name"], paint["step_name"]) == ("look", "paint")
    assert look["verifier_result"]["rewards"] == {"reward": 0.0, "seen": 1.0}
    assert look["exception_info"]["exception_type"] == "AgentTimeoutError"
    assert look["verifier"] == {
        "started_at": "1970-01-01T00:01:41.250000+00:00",
        "finished_at": "1970-01-01T00:01:41.500000+00:00",
    }
    assert "agent_execution" in look
    assert [look["agent_result"].get(f"n_{kind}_tokens") for kind in ("input", "output")] == [10, 4]
    assert paint["agent_result"] == {}
    assert not {"agent_execution", "verifier"} & result.keys()
    assert (paint["verifier_result"]["rewards"], paint["exception_info"]) == ({"reward": 1.0}, None)
    assert (result["exception_info"], result["verifier_environment_mode"]) == (None, None)
    assert result["verifier_result"]["rewards"] == {"reward": 0.5}
    home = tmp_path / result["trial_name"] / "steps"
    assert written(home / "look" / "verifier" / "reward.json") == {"reward": 0.0, "seen": 1.0}
    parts = [written(home / n / "agent" / "trajectory.json")["steps"] for n in ("look", "paint")]
    texts = [[step["message"] for step in part] for part in parts]
    whole = [step["message"] for step in trials["n4"]["trajectory"]["steps"]]
    assert texts[0] + texts[1] == whole
    assert texts[0][0] == "Paint the fence."


def test_a_step_without_a_verdict_is_reported_for_the_trial_if_another_step_has_rewards(
    tmp_path,
):
    result = exported(tmp_path, stepped())["n3"]["result"]
    failed = [step["exception_info"] for step in result["step_results"]]
    assert [each and each["exception_type"] for each in failed] == [
        "AgentTimeoutError",
        "RewardFileNotFoundError",
    ]
    assert result["exception_info"]["exception_type"] == "RewardFileNotFoundError"
    assert result["verifier_result"] is None


def test_the_error_of_the_first_step_is_reported_only_there_and_is_not_a_reward(tmp_path):
    rollout = stepped()
    lost = rollout.tree.index["n3"]
    rollout.tree.index["n1"].results.clear()
    result = exported(tmp_path, rollout)["n3"]["result"]
    [failed] = result["step_results"]
    assert failed["exception_info"]["exception_type"] == "RewardFileNotFoundError"
    assert (result["exception_info"], result["verifier_result"]) == (None, None)
    assert lost.reward is None


def test_a_step_that_could_not_be_prepared_leaves_the_one_before_it_as_it_was(tmp_path):
    rollout = stepped()
    fault = NodeError(boundary="task", type="SetupError", message="exited with 4")
    unready = VerifyResult.unscored("exited with 4", error_type="SetupError")
    leaf = rollout.tree.index["n4"]
    leaf.results = {"look/reward": VerifyResult(reward=1.0), "paint/reward": unready}
    rollout.tree.index["n1"].results.clear()
    leaf.error = rollout.tree.error = fault
    events = [
        NodeScored(
            seq=at,
            ts=110.0 + at,
            node="n4",
            name=f"{name}/reward",
            result=leaf.results[f"{name}/reward"],
        )
        for at, name in enumerate(("look", "paint"))
    ]
    events.append(NodeFailed(seq=2, ts=113.0, node="n4", error=fault))
    trial = exported(tmp_path, dataclasses.replace(rollout, events=events))["n4"]["result"]
    look, paint = trial["step_results"]
    assert (look["verifier_result"], look["exception_info"]) == ({"rewards": {"reward": 1.0}}, None)
    assert paint["exception_info"]["exception_type"] == "RuntimeError"
    assert not {"agent_execution", "verifier"} & paint.keys()
    # Harbor would give the trial what the first step earned.
    assert trial["verifier_result"] is None
    assert trial["exception_info"]["exception_type"] == "RuntimeError"


def test_a_verdict_that_names_no_reward_is_one_without_rewards_and_no_error(tmp_path):
    rollout = fake_finished_rollout()
    nothing = VerifyResult.unscored("no reward", error_type=NO_REWARDS)
    rollout.tree.index["n5"].results = {"reward": nothing}
    result = exported(tmp_path, rollout)["n5"]["result"]
    assert (result["verifier_result"], result["exception_info"]) == ({"rewards": {}}, None)
    assert written(tmp_path / "result.json")["stats"]["evals"].popitem()[1]["metrics"] == [
        {"reward": 1.0, "even": 1.0}
    ]


def test_a_box_that_did_not_start_in_time_has_harbors_name_and_a_late_command_has_not(tmp_path):
    def told(*phases: str) -> str:
        rollout = fake_finished_rollout()
        late = NodeError(boundary="sandbox", type="SandboxTimeoutError", message="late")
        rollout.tree.error, rollout.tree.index["n3"].error = late, None
        events = [
            PhaseEntered(seq=at, ts=90.0, node="n0", phase=phase) for at, phase in enumerate(phases)
        ]
        home = tmp_path / phases[-1]
        home.mkdir()
        trial = exported(home, dataclasses.replace(rollout, events=events))["n3"]["result"]
        return trial["exception_info"]["exception_type"]

    assert told("setup", "start") == "EnvironmentStartTimeoutError"
    assert told("setup", "start", "connect", "execute") == "SandboxTimeoutError"


def test_saved_artifacts_are_copied_with_their_manifest_and_no_link_is_followed(tmp_path):
    source, target, secret = tmp_path / "rollout", tmp_path / "out", tmp_path / "secret"
    secret.write_text("secret")
    kept = source / "branches" / "n4" / "artifacts"
    (kept / "srv" / "empty").mkdir(parents=True)
    (kept / "manifest.json").write_text("[]")
    (kept / "srv" / "made").write_bytes(b"\x00\xff")
    (kept / "srv" / "file").symlink_to(secret)
    (kept / "srv" / "tree").symlink_to(tmp_path)
    os.mkfifo(kept / "srv" / "pipe")
    (source / "branches" / "n5").mkdir()
    (source / "branches" / "n5" / "artifacts").symlink_to(tmp_path)
    target.mkdir()
    exported(target, dataclasses.replace(fake_finished_rollout(), directory=source))
    names = {str(path.relative_to(target)) for path in target.glob("*/artifacts/**/*")}
    home = "paint__0001__n4/artifacts"
    assert names == {f"{home}/{name}" for name in ("manifest.json", "srv", "srv/made", "srv/empty")}
    assert (target / home / "srv" / "made").read_bytes() == b"\x00\xff"


def test_a_task_of_one_prompt_has_no_step_results(tmp_path):
    trials = exported(tmp_path, fake_finished_rollout())
    assert [trial["result"]["step_results"] for trial in trials.values()] == [None] * 3
    assert not list(tmp_path.glob("*/steps"))


@pytest.mark.parametrize("name", ["../up", "..", "a/b", "end.", "new\nline", "x" * 201])
def test_a_step_whose_name_is_not_a_file_name_is_refused(tmp_path, name):
    rollout = fake_finished_rollout()
    rollout.tree.index["n1"].results[f"{name}/reward"] = VerifyResult(reward=1.0)
    with pytest.raises(StoreError, match="cannot be the name of a step"):
        HarborExporter().export("job", [rollout], tmp_path)
