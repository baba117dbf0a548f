"""From a task's `[verifier]` table to its Rewards."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from benchflow_contracts import Endpoint, RareModel, Reward, Task, TaskError, UsageError
from pydantic import Field, field_validator

from .paths import absolute_path
from .script import NATIVE, GradingProtocol, ScriptVerifier


class JudgeTable(RareModel):
    """How a model grades. The operator gives the endpoint, and may give the model."""

    criteria: str = Field(min_length=1)
    files: tuple[str, ...] = ()
    scale: tuple[int, ...] = (0, 1, 2, 3, 4)
    votes: int = Field(default=3, ge=1, le=15)
    timeout_sec: float = Field(default=120, gt=0)
    model: str | None = None

    @field_validator("files")
    @classmethod
    def _files_are_absolute(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(absolute_path, files))

    @field_validator("scale")
    @classmethod
    def _scale_rises(cls, scale: tuple[int, ...]) -> tuple[int, ...]:
        if len(scale) < 2 or list(scale) != sorted(set(scale)):
            raise ValueError("it rises and has at least two values")
        return scale

    @field_validator("votes")
    @classmethod
    def _votes_are_odd(cls, votes: int) -> int:
        if votes % 2 == 0:
            raise ValueError("it is odd")
        return votes


def make_rewards(
    task: Task,
    *,
    isolation: Literal["hermetic", "twin", "shared"] | None = None,
    judge: Endpoint | None = None,
    judge_model: str | None = None,
    protocol: GradingProtocol | None = None,
) -> list[Reward]:
    """Return the rewards of `task`, in the order in which they must score.

    Signals of weight 0 come first, since they may read the live sandbox. The reward named `reward`
    comes last, since a script verifier ends the sandbox. `protocol` is that of the tests;
    `None` is BenchFlow's own.

    Raises:
        TaskError: The `[verifier]` table is malformed, with `task.toml:key`.
        UsageError: The task is judged by a model, and none was given.
    """
    verifier = task.config.verifier
    declared = _declared(verifier.rewards)
    signals: list[Reward] = [reward for reward, weight in declared if weight == 0]
    counted = [(reward, weight) for reward, weight in declared if weight > 0]
    if any(signal.name == "reward" for signal in signals):
        raise TaskError("the name 'reward' is the verdict's", where="task.toml:verifier.rewards")
    if verifier.type == "rewards":
        if not counted:
            raise TaskError(
                "type = 'rewards' needs a reward with a weight above 0",
                where="task.toml:verifier.rewards",
            )
        from .rubric import Rubric  # noqa: PLC0415 - see above

        return [*signals, Rubric(criteria=counted)]
    if counted:
        raise TaskError(
            f"a reward beside type = {verifier.type!r} is a signal: its weight is 0",
            where="task.toml:verifier.rewards",
        )
    if verifier.type == "judge":
        return [*signals, _judge(verifier.judge, judge, judge_model)]
    if verifier.type == "environment":
        return [*signals, _environment(task)]
    hermetic = (isolation or verifier.isolation) == "hermetic"
    script = ScriptVerifier(
        isolation=isolation,
        protocol=protocol or NATIVE,
        needs_processes=bool(verifier.collect) or not hermetic,
        stops_processes=hermetic,
    )
    return [*signals, script]


def _declared(tables: Sequence[Mapping[str, Any]]) -> list[tuple[Reward, float]]:
    if not tables:
        return []
    # Only a task with reward functions pays for the models of their tables.
    from .declared import declared_rewards  # noqa: PLC0415

    return declared_rewards(tables)


def _environment(task: Task) -> Reward:
    # Only a task with a world outside the sandbox pays for this module.
    from .declared import read_table  # noqa: PLC0415
    from .functions.environment_rewards import (  # noqa: PLC0415
        EnvironmentOptions,
        EnvironmentRewards,
    )

    verifier = task.config.verifier
    options = read_table(EnvironmentOptions, verifier.options, "task.toml:verifier.options")
    return EnvironmentRewards(rule=options.rule, reward_range=verifier.reward_range)


def _judge(table: Mapping[str, Any], endpoint: Endpoint | None, model: str | None) -> Reward:
    # Only a judged task pays for the HTTP client.
    from .declared import read_table  # noqa: PLC0415
    from .judge import LLMJudge  # noqa: PLC0415
    from .judge.client import ChatClient  # noqa: PLC0415

    settings = read_table(JudgeTable, table, "task.toml:verifier.judge")
    chosen = model or settings.model
    if endpoint is None or chosen is None:
        missing = "endpoint" if endpoint is None else "model"
        raise UsageError(
            f"the task is graded by a model, and no judge {missing} was given",
            hint="name the judge's endpoint and model on the command line",
        )
    return LLMJudge(
        client=ChatClient(endpoint, chosen, timeout_sec=settings.timeout_sec),
        criteria=settings.criteria,
        files=settings.files,
        scale=settings.scale,
        votes=settings.votes,
    )
