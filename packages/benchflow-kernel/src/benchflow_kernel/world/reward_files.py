"""A task whose reward files are read as the operator says."""

from benchflow_contracts import RewardFiles, Task, TaskVerifier

from .verifiers import with_verifiers


def with_reward_files(task: Task, reward_files: RewardFiles) -> Task:
    """Return `task` with `reward_files` in its verifier and in the verifier of each step."""

    def change(verifier: TaskVerifier, _where: str) -> TaskVerifier:
        return verifier.model_copy(update={"reward_files": reward_files})

    return with_verifiers(task, change)
