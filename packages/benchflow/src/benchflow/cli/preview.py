"""`--explain`, `--print-config` and `--dry-run`: look at a run before it starts."""

import json as jsonlib
from collections.abc import Iterator, Mapping
from typing import Annotated, cast

from benchflow_contracts import BenchFlowError, Model, Task, UsageError
from benchflow_contracts.redaction import MASK
from benchflow_engine.options import RunOptions
from benchflow_engine.preview import Preview, dry_run, explain
from benchflow_engine.secrets import recorded_options
from benchflow_jobs import JobOptions
from benchflow_kernel.resolve import Origin, Setting, to_json
from cyclopts import Parameter

from .config import flag_origins
from .output import note, print_json, print_table

RAN_BUT_FAILED = 1


class PreviewFlags(Model):
    """Ways to look at a run instead of running it."""

    explain: bool = False
    """Every effective setting with its origin, instead of a run."""
    print_config: bool = False
    """Effective options as TOML, which --config reads again, instead of a run."""
    dry_run: bool = False
    """Every check that comes before a rollout, instead of a run."""

    @property
    def any(self) -> bool:
        """Whether the run is only looked at."""
        return self.explain or self.print_config or self.dry_run


PreviewOnly = Annotated[PreviewFlags, Parameter(name="*")]
"""Every field of PreviewFlags as a flag of its own."""


async def preview_run(
    task: str | Task, options: RunOptions, flags: PreviewFlags, *, json: bool
) -> int:
    """Preview one rollout and return the exit code that the run would begin with."""
    if flags.print_config:
        print_config(options)
        return 0
    origins = _origins()
    if not flags.dry_run:
        preview = await explain(task, options, flags=origins)
        _print_settings(preview, json=json)
        return 0
    passed: list[str] = []
    preview = await dry_run(task, options, flags=origins, on_check=passed.append)
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


async def preview_job(job: JobOptions, flags: PreviewFlags, *, json: bool) -> int:
    """Preview a job: its options, or the plan and the checks of its only task.

    Raises:
        UsageError: A plan is asked for, and the job has several tasks.
    """
    if flags.print_config:
        print_config(job.run, job)
        return 0
    tasks = {slot.task.id: slot.task for slot in job.plan().slots}
    if len(tasks) != 1:
        raise UsageError(
            f"a preview is of one task, and this job has {len(tasks)}",
            hint=f"choose a task with --include, such as --include {next(iter(tasks), 'NAME')!r}",
        )
    (task,) = tasks.values()
    return await preview_run(task, job.run, flags, json=json)


def print_config(options: RunOptions, job: JobOptions | None = None) -> None:
    """Print the effective options as TOML. Secrets are left out."""
    origins = _origins()
    values = recorded_options(options)
    if job is not None:
        fields = (name for name in JobOptions.model_fields if name != "run")
        values = {**{name: to_json(getattr(job, name)) for name in fields}, **values}
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    for line in (*_lines(plain, origins), *_tables(values)):
        print(line)  # noqa: T201 - data for standard output


def _origins() -> Mapping[str, Origin]:
    """Return the origins of the options, by field."""
    origins = flag_origins()
    if "env_file" in origins and "agent_env" not in origins:
        return {**origins, "agent_env": origins["env_file"]}
    return origins


def _lines(values: Mapping[str, object], origins: Mapping[str, Origin]) -> Iterator[str]:
    for name, value in values.items():
        origin = origins.get(name)
        comment = "" if origin is None else f"  # {origin}"
        if value is None:
            continue
        if name == "base_url" and to_json(value, name) != value:
            yield f"# {name} holds a credential: give --base-url again"
            continue
        yield f"{name} = {_toml(value)}{comment}"


def _tables(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"\n[{name}]"
            for key, item in cast("Mapping[str, object]", value).items():
                secret = MASK in str(item)
                flag = f"--{name.replace('_', '-')}.{key}"
                yield (
                    f"# {key} is secret: give {flag} again"
                    if secret
                    else (f"{_toml(key)} = {_toml(item)}")
                )


def _toml(value: object) -> str:
    """Return a text, number, truth value or list as TOML."""
    # A TOML string has the escapes of JSON, which leaves one control character as it is.
    return jsonlib.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _print_settings(preview: Preview, *, json: bool) -> None:
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


def _note_not_installed(preview: Preview) -> None:
    for agent in preview.not_installed:
        note(
            f"agent {agent!r} is not installed yet: a run installs it, and its bundles are unknown"
        )
