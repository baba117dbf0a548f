"""A leaf as a trial of Harbor.

Source of the format: harbor 0.24.0, `TrialConfig` and `TrialResult`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from benchflow_contracts import FinishedRollout, RolloutNode, StoreError

from .atif import leaf_facts
from .outcome import exception_info, rewards, verifier_mode
from .plain import plain, plain_text
from .step_results import graded_steps, step_result
from .steps import spent, step_calls
from .times import trial_times

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.@-]{0,199}", re.ASCII)


def trial_name(rollout: FinishedRollout, leaf: RolloutNode) -> str:
    """Return the name of the trial's directory. In a tree, the name includes the leaf.

    Raises:
        StoreError: The id is not a file name, so another program wrote the rollout.
    """
    tree = rollout.tree
    name = tree.rollout_id if len(tree.leaves) == 1 else f"{tree.rollout_id}__{leaf.id}"
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot be the name of a trial", hint="was this rollout's log changed?"
        )
    return name


def job_id(job: str) -> str:
    """Return the id of a job. Every export of the job has the same id."""
    return str(uuid5(NAMESPACE_OID, f"benchflow:{job}"))


def task_config(rollout: FinishedRollout) -> dict[str, Any]:
    """Return Harbor's `TaskConfig`: the task's path, and the dataset in its name."""
    path = rollout.task_path or rollout.tree.task_id
    return {"path": plain_text(str(path)), "source": _dataset(rollout)}


def agent_config(rollout: FinishedRollout) -> dict[str, Any]:
    """Return Harbor's `AgentConfig`."""
    model = None if rollout.model is None else plain_text(rollout.model)
    return {"name": plain_text(rollout.agent), "model_name": model}


def environment_config(rollout: FinishedRollout) -> dict[str, Any]:
    """Return Harbor's `EnvironmentConfig` with our provider, which Harbor does not know."""
    return {"import_path": f"benchflow.sandboxes:{plain_text(rollout.sandbox)}"}


def trial_config(job: str, rollout: FinishedRollout, leaf: RolloutNode) -> dict[str, Any]:
    """Return `config.json` of a trial."""
    return {
        "task": task_config(rollout),
        "trial_name": trial_name(rollout, leaf),
        "agent": agent_config(rollout),
        "environment": environment_config(rollout),
        "job_id": job_id(job),
    }


def trial_result(
    job: str, rollout: FinishedRollout, leaf: RolloutNode, owned: Mapping[str, str]
) -> dict[str, Any]:
    """Return `result.json` of a trial.

    The tokens are those of the steps that the leaf owns. So the sum over the trials of a job is
    the real use.
    """
    name, trial_rewards = (
        trial_name(rollout, leaf),
        rewards(leaf.results.get("reward"), rollout.task_format),
    )
    parts = graded_steps(leaf)
    own = [node for node in leaf.path if owned[node.id] == leaf.id]
    steps = [step_result(rollout, part, set(own)) for part in parts]
    return {
        "id": str(uuid5(NAMESPACE_OID, f"benchflow:{job}/{name}")),
        "task_name": plain_text(rollout.tree.task_id),
        "trial_name": name,
        "trial_uri": _uri(rollout, name),
        "task_id": {"path": task_config(rollout)["path"]},
        "source": _dataset(rollout),
        "task_checksum": plain_text(rollout.task_digest),
        "config": trial_config(job, rollout, leaf),
        "agent_info": _agent_info(rollout),
        "agent_result": {
            **spent(rollout, own),
            "rollout_details": _rollout_details(rollout, leaf, owned),
            "metadata": {"benchflow": leaf_facts(rollout, leaf)},
        },
        "verifier_result": None if trial_rewards is None else {"rewards": trial_rewards},
        "verifier_environment_mode": None if parts else verifier_mode(rollout, leaf),
        "exception_info": exception_info(rollout, leaf, steps),
        "step_results": steps or None,
        **trial_times(rollout, leaf, in_steps=bool(steps)),
    }


def _dataset(rollout: FinishedRollout) -> str | None:
    dataset, slash, _ = rollout.tree.task_id.rpartition("/")
    return plain_text(dataset) if slash else None


def _uri(rollout: FinishedRollout, name: str) -> str:
    if rollout.directory is None:
        return f"benchflow:{name}"
    return rollout.directory.resolve().as_uri()


def _agent_info(rollout: FinishedRollout) -> dict[str, Any]:
    info: dict[str, Any] = {"name": plain_text(rollout.agent), "version": "unknown"}
    if rollout.model is not None:
        provider, slash, name = plain_text(rollout.model).partition("/")
        model = {"name": name, "provider": provider} if slash else {"name": provider}
        info["model_info"] = model
    return info


def _rollout_details(
    rollout: FinishedRollout, leaf: RolloutNode, owned: Mapping[str, str]
) -> list[dict[str, Any]] | None:
    """Return the exact tokens of each call, or None if the tokens of one call are unknown."""
    calls = [
        (call, owned[node.id] != leaf.id)
        for node in leaf.path
        if node.step is not None
        for call in step_calls(rollout, node.step)
    ]
    if not calls or any(
        call.prompt_token_ids is None or call.completion_token_ids is None for call, _ in calls
    ):
        return None
    details: dict[str, Any] = {
        "prompt_token_ids": [call.prompt_token_ids for call, _ in calls],
        "completion_token_ids": [call.completion_token_ids for call, _ in calls],
        "extra": {"is_copied_context": [copied for _, copied in calls]},
    }
    if all(call.logprobs is not None for call, _ in calls):
        details["logprobs"] = [call.logprobs for call, _ in calls]
    return [plain(details)]
