"""`job.json`: the plan of a job, so that a resume runs the same job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from benchflow_contracts import Model, StoreError, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.secrets import recorded_config
from benchflow_store import write_text
from pydantic import ValidationError

from .options import JobOptions, Planned


class JobPlan(Model):
    """The slots in schedule order, each with its task's digest, and the runs' configuration."""

    schema_version: Literal["1.0"] = "1.0"
    slots: Mapping[str, str]
    run: Mapping[str, Any]

    @classmethod
    def of(cls, planned: Planned, options: JobOptions) -> "JobPlan":
        """Return the plan of a new job."""
        return cls(
            slots={slot.id: slot.task.digest for slot in planned.slots},
            run=recorded_config(options.run, (slot.task.id for slot in planned.slots)),
        )


def read_plan(directory: Path) -> JobPlan | None:
    """Return the plan of a job's directory; `None` without a plan.

    Raises:
        StoreError: The plan is damaged.
    """
    path = directory / "job.json"
    if not path.exists():
        return None
    try:
        return JobPlan.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StoreError(f"damaged plan: {error.errors()[0]['msg']}", where=str(path)) from error


def settle_plan(directory: Path, plan: JobPlan) -> JobPlan:
    """Write the plan of a new job, or compare a resumed job with its plan. Return the plan.

    Raises:
        UsageError: The job was planned with other tasks or options, or by another version.
        StoreError: The plan on disk is damaged.
    """
    path = directory / "job.json"
    earlier = read_plan(directory)
    if earlier is None:
        write_text(path, plan.model_dump_json(indent=2) + "\n")
        return plan
    unshared = _settings(earlier.run).keys() ^ _settings(plan.run).keys()
    if unshared:
        # The value of such a setting is not known.
        raise UsageError(
            f"job {directory.name!r} was planned by another version of BenchFlow, with other "
            f"settings: {', '.join(sorted(unshared))}",
            hint="give another --job-name, or use the version that planned the job",
            where=str(path),
        )
    difference = _difference(earlier, plan)
    if difference is not None:
        raise UsageError(
            f"job {directory.name!r} was planned differently: {difference}",
            hint="give another --job-name, or the options of the first run",
        )
    return earlier


def _settings(run: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings of the tables that every configuration has, by dotted name."""
    found: dict[str, object] = {}
    for name, value in run.items():
        field = RunConfig.model_fields.get(name)
        if isinstance(value, Mapping) and field is not None and isinstance(field.default, Model):
            table = cast("Mapping[str, object]", value)
            found |= {f"{name}.{key}": item for key, item in table.items()}
        else:
            found[name] = value
    return found


def _difference(earlier: JobPlan, plan: JobPlan) -> str | None:
    known = _settings(earlier.run)
    for key, value in _settings(plan.run).items():
        before = known[key]
        if before != value:
            return f"{key} was {before!r} and is {value!r}"
    if list(earlier.slots) != list(plan.slots):
        return f"it had {len(earlier.slots)} rollouts, and these are {len(plan.slots)} others"
    changed = next((s for s, digest in plan.slots.items() if earlier.slots[s] != digest), None)
    return None if changed is None else f"the task of {changed!r} changed since"
