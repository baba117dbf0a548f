"""The Reward plane: how a node is scored."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast, get_args

from pydantic import Field, model_validator

from ._model import Model
from .cause import Cause
from .tree import RolloutNode

Space = Literal["output", "action", "reasoning", "memory", "latent"]
Granularity = Literal["terminal", "step"]
Grading = Literal["hermetic", "twin", "shared", "host"]
"""Where the verdict was made. `host` is code of ours outside of any sandbox."""


Integrity = Literal["clean", "suspicious", "tampered"]
"""What the files say that the tests were run with: `tampered` may have steered them."""


RewardFiles = Literal["strict", "harbor"]
"""How reward files of Harbor's protocol are protected and read. `strict`: only the verifier's user
may write to `/logs/verifier`, and two reward files are an error. `harbor`: as Harbor 0.24 does,
every user may write there, and reward.json is read before reward.txt."""


TAMPERED = "tampered"
"""What the error of a verdict that is not counted for that begins with."""


NO_REWARDS = "NoRewards"
"""The `error_type` of a verdict that says that there is nothing to reward: no number, and no
fault. Harbor's tests may give one, by a `reward.json` without keys."""


class RewardEvent(Model):
    """One signal: what was measured, where, and of which step."""

    source: str
    value: float = Field(allow_inf_nan=False)
    space: Space = "output"
    granularity: Granularity = "terminal"
    step_id: str | None = None
    tag: str | None = None
    meta: Mapping[str, Any] = {}


class VerifyResult(Model):
    """A verdict. No score is `reward=None` with an `error`, never a silent 0."""

    reward: float | None = Field(allow_inf_nan=False)
    items: Mapping[str, float] = {}
    """Named parts of the reward, as the verifier reported them."""
    events: tuple[RewardEvent, ...] = ()
    space: Space = "output"
    granularity: Granularity = "terminal"
    grading: Grading = "host"
    error: str | None = None
    error_type: str | None = None
    """The name of the error's type, such as `RewardFileEmptyError`, when it has one."""
    retryable: bool = False
    """Of no score: whether the same rollout may come to one when it is run again, since what
    failed passes. Such is a grading box that was killed from outside."""
    cause: Cause | None = None
    """Who prevented the tests from judging, and how. What the agent caused has the lowest reward
    of the task's range; what anybody else caused has no reward."""
    meta: Mapping[str, Any] = {}

    @property
    def integrity(self) -> Integrity | None:
        """How a twin's files were graded; `None` where nothing of the agent's was graded in."""
        told = self.meta.get("integrity")
        if not isinstance(told, Mapping):
            return None
        grade = cast("Mapping[str, object]", told).get("grade")
        return cast("Integrity", grade) if grade in get_args(Integrity) else None

    def counted(self) -> "VerifyResult":
        """Return what may be counted and trained on: of a tampered verdict, only why not."""
        if self.integrity != "tampered" or self.reward is None:
            return self
        found = self.meta["integrity"].get("findings", ())
        paths = ", ".join(str(each["path"]) for each in found if each["grade"] == "tampered")
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
        """Return a result that says why there is no reward."""
        return cls(
            reward=None,
            error=error,
            error_type=error_type,
            retryable=retryable,
            grading=grading,
            cause=cause,
        )


class Reward(Protocol):
    """Scores a node of the tree; `node.path` and `node.state` are its evidence."""

    @property
    def name(self) -> str:
        """The key of its verdict in `RolloutNode.results`."""
        ...

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the verdict.

        A failure to score is raised as `RewardError` or returned as
        `VerifyResult.unscored`; either way the node has no reward.
        """
        ...
