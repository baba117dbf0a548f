"""A verdict on a node: its reward, or the reason why it does not have one."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

from pydantic import Field, model_validator

from ._model import Model, RareModel
from .cause import Cause
from .judge import JudgeUse

Space = Literal["output", "action", "reasoning", "memory", "latent"]
Granularity = Literal["terminal", "step"]
Grading = Literal["hermetic", "twin", "shared", "host"]
"""Where the verdict was made. `host`: code of BenchFlow outside all sandboxes."""

Integrity = Literal["clean", "suspicious", "tampered"]
"""The grade of the files that the tests ran with. `tampered`: files may have steered the tests."""

RewardFiles = Literal["strict", "open"]
"""How reward files are protected and read, if the protocol has this choice. `strict`: only the
verifier's user may write to `/logs/verifier`, and two reward files are an error. `open`: every user
may write there, and reward.json is read before reward.txt."""

MAX_REWARD: Final = 1e50
"""The largest absolute reward. The fourth power of a reward is a finite number, so that means,
variances and intervals of rewards are finite, too."""

TAMPERED = "tampered"
"""The first word of the error of a verdict that does not count because of tampering."""

NO_REWARDS = "NoRewards"
"""The `error_type` of a verdict without a number and without a fault: there is nothing to reward.
In some protocols, tests report it by a `reward.json` without keys."""


class RewardEvent(RareModel):
    """One signal: its value, its source and its step."""

    source: str
    value: float = Field(allow_inf_nan=False)
    space: Space = "output"
    granularity: Granularity = "terminal"
    step_id: str | None = None
    tag: str | None = None
    meta: Mapping[str, Any] = {}


class VerifyResult(Model):
    """A verdict. Without a score, `reward` is `None`, never a silent 0, and `error` says why."""

    reward: float | None = Field(allow_inf_nan=False, ge=-MAX_REWARD, le=MAX_REWARD)
    items: Mapping[str, float] = {}
    """Named parts of the reward, as the verifier reported them."""
    reward_in_items: bool = False
    """Whether `reward` comes from `items`: the key `reward`, or else the mean of all items."""
    events: tuple[RewardEvent, ...] = ()
    space: Space = "output"
    granularity: Granularity = "terminal"
    grading: Grading = "host"
    error: str | None = None
    error_type: str | None = None
    """The name of the error's type, such as `EvidenceMissingError`, if it has one."""
    retryable: bool = False
    """For a verdict without a reward: whether the fault was temporary, such as a grading sandbox
    that was killed from outside. The same rollout may get a reward when it runs again."""
    cause: Cause | None = None
    """Who prevented the tests from judging, and how. If it was the agent, the reward is the lowest
    of the task's range. Otherwise the result does not have a reward."""
    judge: JudgeUse | None = None
    """What this reward used of the judge's model. The engine sets the value from its record."""
    meta: Mapping[str, Any] = {}

    @property
    def integrity(self) -> Integrity | None:
        """The integrity grade; `None` if the grading sandbox did not have files of the agent."""
        report = self.meta.get("integrity")
        if report is None or not isinstance(report, Mapping):  # The second check costs more.
            return None
        grade = cast("Mapping[str, object]", report).get("grade")
        return cast("Integrity", grade) if grade in get_args(Integrity) else None

    def counted(self) -> "VerifyResult":
        """Return the verdict for counts and training. A tampered verdict becomes unscored."""
        if self.integrity != "tampered" or self.reward is None:
            return self
        findings = self.meta["integrity"].get("findings", ())
        paths = ", ".join(str(item["path"]) for item in findings if item["grade"] == "tampered")
        error = f"{TAMPERED}: the agent changed {paths or 'files'}, which can steer the tests; "
        error += f"their verdict of {self.reward:g} is not counted"
        return VerifyResult.unscored(error, grading=self.grading, error_type="TamperedError")

    @model_validator(mode="after")
    def _unscored_names_its_cause(self) -> "VerifyResult":
        if self.reward is None and not self.error:
            raise ValueError("a result without a reward needs an error")
        return self

    @classmethod
    def unscored(
        cls,
        error: str,
        *,
        grading: Grading = "host",
        error_type: str | None = None,
        retryable: bool = False,
        cause: Cause | None = None,
    ) -> "VerifyResult":
        """Return a verdict without a reward, with the reason."""
        return cls(
            reward=None,
            error=error,
            error_type=error_type,
            retryable=retryable,
            grading=grading,
            cause=cause,
        )
