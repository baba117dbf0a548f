"""The files of a plan: `job.json`, `plan.json` and `job.digest`."""

import json
import os
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import ListedTask, StoreError
from benchflow_engine.config import RunConfig
from benchflow_engine.secret_redactor import SecretRedactor
from benchflow_engine.secrets import secrets_of
from benchflow_store import has_own_seal, seal_config, write_text
from pydantic import ValidationError

from .job_config import DesignConfig, JobConfig, RunLayer
from .resolved_job import ResolvedJob, Revision, digest_of, make_plan
from .slot_table import PlannedTask, SlotTable
from .variants import resolve_variants, tables_of

JOB_FILE: Final = "job.json"
PLAN_FILE: Final = "plan.json"
DIGEST_FILE: Final = "job.digest"
_VERSION: Final = "2.0"
_OLD_VERSION: Final = "1.0"
_RESTORE: Final = "restore job.json and plan.json from a copy, or start a new job"


def write_plan(directory: Path, plan: ResolvedJob) -> None:
    """Write the files of a plan, also of a later revision.

    `plan.json` comes first, and `job.json` says how much of it counts. A crash between the two
    leaves the plan of before.

    Raises:
        StoreError: A file cannot be written.
    """
    write_text(directory / PLAN_FILE, _dump(_schedule(plan)))
    _sync(directory / PLAN_FILE, directory)
    write_text(directory / JOB_FILE, _dump(seal_config(_job(plan)), indent=2))
    _sync(directory / JOB_FILE, directory)
    write_text(directory / DIGEST_FILE, plan.digest + "\n")


def finish_plan_files(directory: Path, plan: ResolvedJob) -> None:
    """Complete what a process that was killed in `write_plan` left. The caller holds the job.

    Raises:
        StoreError: A file cannot be written.
    """
    for path in directory.glob(".*.tmp"):
        with suppress(OSError):
            path.unlink()
    digest = directory / DIGEST_FILE
    if not digest.is_file() or digest.read_text("utf-8", "replace") != plan.digest + "\n":
        write_text(digest, plan.digest + "\n")


def load_plan(directory: Path) -> ResolvedJob | None:
    """Return the plan of a job's directory, also of version 0.8; `None` without a plan.

    Secrets are masked.

    Raises:
        StoreError: The plan is damaged, or another version of BenchFlow wrote it.
    """
    job = _read(directory / JOB_FILE)
    if job is None:
        return None
    where = str(directory / JOB_FILE)
    try:
        if job.get("schema_version") == _OLD_VERSION:
            return _of_old_version(job)
        schedule = _read(directory / PLAN_FILE)
        if schedule is None:
            raise StoreError(
                "the schedule of the job is missing",
                hint=_RESTORE,
                where=str(directory / PLAN_FILE),
            )
        return _loaded(job, schedule, where)
    except (ValidationError, ValueError, LookupError, TypeError, AttributeError) as error:
        fault = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error)}
        raise StoreError(
            f"damaged plan, or one of another version of BenchFlow: {fault['msg']}",
            hint=_RESTORE,
            where=where,
        ) from error


def is_own_plan(directory: Path) -> bool:
    """Return whether this user planned the job, and nobody has changed `job.json` since.

    A plan names code to import and variables to send: run only a plan that can be trusted.
    """
    job = _read(directory / JOB_FILE)
    return job is not None and has_own_seal(job)


def difference(earlier: ResolvedJob, plan: ResolvedJob) -> str | None:
    """Return what differs between two plans, in words; `None` if `plan` is a revision."""
    if plan.digest in {each.digest for each in earlier.revisions}:
        return None
    names = [", ".join(each.id for each in job.variants) for job in (earlier, plan)]
    if names[0] != names[1]:
        return f"its variants were {names[0]} and are {names[1]}"
    before, after = _settings(earlier), _settings(plan)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            return f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
    if [each.id for each in earlier.tasks] != [each.id for each in plan.tasks]:
        return f"it had {len(earlier.tasks)} tasks, and these are {len(plan.tasks)} others"
    for old, new in zip(earlier.tasks, plan.tasks, strict=True):
        if (old.digest, old.override) != (new.digest, new.override):
            return f"the task {old.id!r} changed since"
    if set(earlier.slots.places()) == set(plan.slots.places()):
        return "the same rollouts were in another order, because it was extended"
    return f"it had {len(earlier.slots)} rollouts, and these are {len(plan.slots)} others"


def _settings(plan: ResolvedJob) -> dict[str, object]:
    """Return the settings of the design and of the variants, by dotted name."""
    public = [task.id for task in plan.tasks]
    found = _leaves(plan.config.design.model_dump(mode="json", exclude={"replications"}), "design")
    for each in plan.variants:
        name = "" if len(plan.variants) == 1 else f"variants.{each.id}"
        recorded = each.recorded(public)
        found |= _leaves({**recorded.pop("run"), **recorded}, name)
    return found


def _leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and value:
            found |= _leaves(cast("Mapping[str, Any]", value), name)
        else:
            found[name] = value
    return found


def _job(plan: ResolvedJob) -> dict[str, Any]:
    public = [task.id for task in plan.tasks]
    return {
        "schema_version": _VERSION,
        "digest": plan.digest,
        "revisions": [each.model_dump() for each in plan.revisions],
        "config": _without_secrets(plan),
        "variants": {
            each.id: {**each.recorded(public), "image_origin": each.image_origin}
            for each in plan.variants
        },
    }


def _without_secrets(plan: ResolvedJob) -> dict[str, Any]:
    """Return the configuration as it was given, with masks for the agents' secrets."""
    public = [task.id for task in plan.tasks]
    secrets = (secret for each in plan.variants for secret in secrets_of(each.run, public))
    redactor = SecretRedactor(secrets)
    config = plan.config.model_dump(mode="json", exclude_unset=True)
    for layer in (config.get("run", {}), *config.get("variants", ())):
        agent = layer.get("tables", {}).get("agent", {})
        if "env" in agent:
            agent["env"] = redactor.value(agent["env"])
    return config


def _schedule(plan: ResolvedJob) -> dict[str, Any]:
    names = ("variant", "task", "repeat")
    return {
        "schema_version": _VERSION,
        "variants": [each.id for each in plan.variants],
        "tasks": [each.model_dump(mode="json", exclude_defaults=True) for each in plan.tasks],
        "slots": {n: c.tolist() for n, c in zip(names, plan.slots.columns, strict=True)},
        "refused": [each.model_dump(mode="json") for each in plan.refused],
    }


def _loaded(job: Mapping[str, Any], schedule: Mapping[str, Any], where: str) -> ResolvedJob:
    config = JobConfig.model_validate(job["config"])
    revisions = tuple(Revision.model_validate(each) for each in job["revisions"])
    newest, slots = revisions[-1], schedule["slots"]
    variants = resolve_variants(config)
    tasks = tuple(PlannedTask.model_validate(e) for e in schedule["tasks"][: newest.tasks])
    columns = (
        array("H", slots["variant"][: newest.slots]),
        array("I", slots["task"][: newest.slots]),
        array("H", slots["repeat"][: newest.slots]),
    )
    table = SlotTable([each.id for each in variants], tasks, columns)
    plan = ResolvedJob(
        config,
        variants,
        tasks,
        table,
        revisions,
        tuple(ListedTask.model_validate(each) for each in schedule["refused"]),
    )
    if digest_of(config.design, variants, tasks, table) != newest.digest:
        raise StoreError(_mismatch(job, plan), hint=_RESTORE, where=where)
    return plan


def _mismatch(job: Mapping[str, Any], plan: ResolvedJob) -> str:
    """Return why a plan has another digest than its file: other settings, or damage."""
    public = [task.id for task in plan.tasks]
    now = {each.id: each.recorded(public) for each in plan.variants}
    written = {name: {**each} for name, each in job["variants"].items()}
    for each in written.values():
        del each["image_origin"]
    # A setting that only one version has may be `None`.
    other = sorted({name for name, _ in _items(written) ^ _items(now)})
    if other:
        shown = ", ".join(other[:5])
        return f"another version of BenchFlow planned the job, with other settings: {shown}"
    return "damaged plan: the digest does not fit"


def _items(table: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(name, json.dumps(value)) for name, value in _leaves(table).items()}


def _of_old_version(job: Mapping[str, Any]) -> ResolvedJob:
    """Return the plan in a `job.json` of version 0.8: one variant, and slots such as `task#0`."""
    tables = tables_of(RunConfig.model_validate(job["run"]))
    slots: list[tuple[str, int]] = []
    digests: dict[str, str] = {}
    for name, digest in job["slots"].items():
        task, repeat = name.rsplit("#", 1)
        digests[task] = digest
        slots.append((task, int(repeat)))
    number = {task: place for place, task in enumerate(digests)}
    design = DesignConfig(replications=max((repeat for _, repeat in slots), default=0) + 1)
    return make_plan(
        JobConfig(run=RunLayer(tables=tables), design=design),
        tuple(PlannedTask(id=task, digest=digest) for task, digest in digests.items()),
        places=[(0, number[task], repeat) for task, repeat in slots],
    )


def _sync(*paths: Path) -> None:
    """Wait until the content of files and directories is durable."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _dump(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise StoreError(f"damaged plan: {error}", hint=_RESTORE, where=str(path)) from error
    if not isinstance(value, dict):
        raise StoreError("damaged plan: it is not a table", hint=_RESTORE, where=str(path))
    return cast("dict[str, Any]", value)
