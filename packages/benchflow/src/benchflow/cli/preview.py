"""`--explain`, `--print-config` and `--dry-run`: look at a run before it starts."""

import json as jsonlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, cast

from benchflow_contracts import BenchFlowError, Model, Task, UsageError
from benchflow_contracts.redaction import MASK
from benchflow_engine.config import RunConfig
from benchflow_engine.secrets import recorded_config
from benchflow_kernel.resolve import Origin, Setting, to_json
from cyclopts import Parameter

from .output import note, print_json, print_table
from .rollout_flags import origins

if TYPE_CHECKING:
    from benchflow_engine.preview import Preview
    from benchflow_jobs import JobConfig, JobOptions

RAN_BUT_FAILED = 1


class PreviewFlags(Model):
    """Ways to look at a run instead of running it."""

    explain: bool = False
    """Every effective setting with its origin, instead of a run."""
    print_config: bool = False
    """Effective configuration as TOML, which --config reads again, instead of a run."""
    dry_run: bool = False
    """Every check that comes before a rollout, instead of a run."""

    @property
    def any(self) -> bool:
        """Whether the run is only looked at."""
        return self.explain or self.print_config or self.dry_run


PreviewOnly = Annotated[PreviewFlags, Parameter(name="*")]
"""Every field of PreviewFlags as a flag of its own."""


async def preview_run(
    task: str | Task, config: RunConfig, flags: PreviewFlags, *, json: bool
) -> int:
    """Preview one rollout and return the exit code that the run would begin with."""
    if flags.print_config:
        print_config(config)
        return 0
    from benchflow_engine.preview import dry_run, explain

    known = _origins()
    if not flags.dry_run:
        preview = await explain(task, config, origins=known)
        _print_settings(preview, json=json)
        return 0
    passed: list[str] = []
    preview = await dry_run(task, config, origins=known, on_check=passed.append)
    if preview.error is not None:
        _print_failure(preview.error, passed, json=json)
        return RAN_BUT_FAILED
    if flags.explain:
        _print_settings(preview, json=json)
    elif json:
        print_json({"checks": passed, "not_installed": list(preview.not_installed)})
    if not json:
        _note_checks(passed)
        _note_not_installed(preview)
    return 0


async def preview_job(job: "JobOptions", flags: PreviewFlags, *, json: bool) -> int:
    """Preview a job: its configuration, or the plan and the checks of its only task.

    Raises:
        UsageError: A plan is asked for, and the job has several tasks.
    """
    if flags.print_config:
        print_config(job.run, job)
        return 0
    from benchflow_jobs import plan_of

    tasks = plan_of(job).tasks
    if len(tasks) != 1:
        raise UsageError(
            f"a preview is of one task, and this job has {len(tasks)}",
            hint=f"choose a task with --include, such as --include {next(iter(tasks), 'NAME')!r}",
        )
    (task,) = tasks.values()
    return await preview_run(task, job.run, flags, json=json)


async def preview_checks(job: "JobConfig", *, json: bool) -> int:
    """Make the checks of a job, print all of them, and return the exit code.

    Raises:
        JobConfigError: The configuration does not fit together, or with the tasks.
    """
    from benchflow_jobs import check_job

    checks = await check_job(job)
    failed = [(each.name, each.error) for each in checks if each.error is not None]
    passed = [each.name for each in checks if each.error is None and not each.warning]
    warnings = [each.warning for each in checks if each.warning]
    if json:
        errors = [{"check": name, "error": str(e), "hint": e.hint} for name, e in failed]
        print_json({"checks": passed, "errors": errors, "warnings": warnings})
        return RAN_BUT_FAILED if failed else 0
    _note_checks(passed)
    for warning in warnings:
        note(f"warning {warning}")
    for name, error in failed:
        note(f"failed  {name}: {error}")
        if error.hint:
            note(f"        hint: {error.hint}")
    return RAN_BUT_FAILED if failed else 0


def print_config(config: RunConfig, job: "JobOptions | None" = None) -> None:
    """Print the effective configuration as TOML. Secrets are left out."""
    values = recorded_config(config)
    if job is not None:
        fields = (name for name in type(job).model_fields if name != "run")
        values = {**{name: to_json(getattr(job, name)) for name in fields}, **values}
    for line in _table("", values, _origins()):
        print(line)  # noqa: T201 - data for standard output


def _origins() -> Mapping[str, Origin]:
    """Return the origins of the settings, by name."""
    known = origins()
    return {**known, "agent.env": known["env_file"]} if "env_file" in known else known


def _table(prefix: str, table: Mapping[str, object], known: Mapping[str, Origin]) -> Iterator[str]:
    """Return the lines of a table and of the tables below it."""
    inner: dict[str, Mapping[str, object]] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner[f"{prefix}{_key(key)}"] = cast("Mapping[str, object]", value)
        elif prefix == "agent.env." and MASK in str(value):
            yield f"# {key} is secret: give --agent-env.{key} again"
        elif key == "base_url" and to_json(value, key) != value:
            yield f"# {key} holds a credential: give --base-url again"
        elif value is not None:
            origin = known.get(name)
            yield f"{_key(key)} = {_toml(value)}" + ("" if origin is None else f"  # {origin}")
    for name, value in inner.items():
        lines = list(_table(f"{name}.", value, known))
        if lines:
            yield from ("", f"[{name}]", *lines)


def _key(key: str) -> str:
    """Return a key of TOML, in quotes if it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: object) -> str:
    """Return a text, number, truth value or list as TOML."""
    # A TOML string has the escapes of JSON, which leaves one control character as it is.
    return jsonlib.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _print_settings(preview: "Preview", *, json: bool) -> None:
    if json:
        print_json({"settings": [_record(setting) for setting in preview.settings]})
        return
    rows = [(s.name, _shown(s.value), s.origin) for s in preview.settings if not _is_unset(s)]
    print_table(("setting", "value", "origin"), rows, empty="no settings")
    _note_not_installed(preview)


def _record(setting: Setting) -> dict[str, object]:
    origin = {"kind": setting.origin.kind, "where": setting.origin.where}
    return {"setting": setting.name, "value": setting.value, "origin": origin}


def _is_unset(setting: Setting) -> bool:
    return setting.origin.kind == "default" and setting.value in (None, "", [], {})


def _shown(value: object) -> str:
    return value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False)


def _print_failure(error: BenchFlowError, passed: list[str], *, json: bool) -> None:
    if json:
        print_json({"checks": passed, "error": str(error), "hint": error.hint})
        return
    _note_checks(passed)
    note(f"failed  plan: {error}")
    if error.hint:
        note(f"hint: {error.hint}")


def _note_checks(passed: list[str]) -> None:
    for name in passed:
        note(f"ok      {name}")


def _note_not_installed(preview: "Preview") -> None:
    for agent in preview.not_installed:
        note(
            f"agent {agent!r} is not installed yet: a run installs it, and its bundles are unknown"
        )
