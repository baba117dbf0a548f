"""The configuration of monitor mode: `monitor.toml`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import UsageError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PriceTable(_Table):
    """The price of one million tokens of a model, in one currency for all models."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)


class RewardTable(_Table):
    """One online reward: a reward function of a task (`kind`), or a class by its import path."""

    kind: str | None = None
    """As in `[[verifier.rewards]]` of a task, or `tool_errors`, `loops` and `memory_operations`."""
    import_path: str | None = None
    """`module:Class`. Only the operator names code, never a trace."""
    sample: float = Field(default=1.0, ge=0, le=1)
    """The share of rollouts that it scores. The choice follows from the rollout's id."""
    options: Mapping[str, Any] = {}
    """The other keys of the table: those of the reward itself."""

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, table: Any) -> Any:  # noqa: ANN401 - as pydantic has it
        if not isinstance(table, Mapping):
            return table
        known = cast("Mapping[str, Any]", table)
        own = {key: value for key, value in known.items() if key in cls.model_fields}
        other = {key: value for key, value in known.items() if key not in cls.model_fields}
        return own | {"options": {**own.get("options", {}), **other}}


class OnlineJudgeTable(_Table):
    """A model that judges a share of the rollouts."""

    base_url: str
    model: str
    criteria: str = Field(min_length=1)
    votes: int = Field(default=1, ge=1, le=15)
    api_key_env: str = "BENCHFLOW_JUDGE_API_KEY"
    sample: float = Field(default=0.02, ge=0, le=1)


class EvalTable(_Table):
    """A job whose rollouts are shown beside production, scored by the same rewards."""

    job: str = Field(min_length=1, max_length=200, pattern=r"^[^/\\]+$")
    """The name of a job in the directory of jobs."""
    service: str = ""
    """The service of production; empty for each service."""
    environment: str = ""
    """The environment of production; empty for each environment."""
    version: str | None = None
    """The version of production (default: the name of the rollout's variant)."""
    variant: str | None = None
    """Only this variant of the job."""


class WebhookTable(_Table):
    """Where alerts are sent to."""

    url: str = Field(pattern=r"^https?://")
    key_env: str = "BENCHFLOW_WEBHOOK_KEY"
    """The variable with the key of the signature."""
    max_tries: int = Field(default=10, ge=1, le=100)


class MonitorConfig(_Table):
    """What monitor mode does with traces."""

    grace_sec: float = Field(default=30.0, ge=0)
    """A rollout is closed so long after its root span and its last change."""
    idle_sec: float = Field(default=600.0, gt=0)
    """A rollout without its root span is closed so long after its last change."""
    keep_days: float = Field(default=30.0, gt=0)
    """Spans are deleted after that. Rollouts and their rewards stay."""
    max_waiting_mb: int = Field(default=64, gt=0)
    """Bytes that wait for the disk. Above this, senders get status 429."""
    redact_env: tuple[str, ...] = ()
    """Variables of the server whose values are removed from traces, in every encoding."""
    rewards: tuple[RewardTable, ...] = (
        RewardTable(kind="tool_errors"),
        RewardTable(kind="loops"),
    )
    judge: OnlineJudgeTable | None = None
    prices: Mapping[str, PriceTable] = {}
    evals: tuple[EvalTable, ...] = ()
    check_sec: float = Field(default=30.0, ge=1)
    """How often the rules of alerts are checked."""
    quiet_sec: float = Field(default=300.0, ge=0)
    """An alert is resolved when its rule did not fire for so long."""
    alerts: tuple[Mapping[str, Any], ...] = ()
    """The rules of alerts, as tables."""
    webhook: WebhookTable | None = None


def read_monitor_config(path: Path) -> MonitorConfig:
    """Read `monitor.toml`.

    Raises:
        UsageError: The file cannot be read, is not TOML, or has a wrong key (`file:key`).
    """
    try:
        return MonitorConfig.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not TOML: {error}", where=str(path)) from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise UsageError(
            f"{problem['msg']}: {problem['input']!r}",
            where=f"{path}:{key}",
            hint="see the guide 'Monitor an agent'",
        ) from error
