"""Errors of rewards that run tests."""

from benchflow_contracts import RewardError


class RewardFormatError(RewardError):
    """A reward file breaks the grammar of `reward.txt` or `reward.json`."""

    default_culprit = "inside"


class TwoRewardFilesError(RewardFormatError):
    """Both reward files exist, so the verdict is ambiguous."""

    default_hint = "let the tests write one of reward.json and reward.txt, and delete the other"


class VerifierTimeoutError(RewardError):
    """The tests ran longer than the task allows."""

    default_hint = "raise [verifier] timeout_sec in task.toml"
