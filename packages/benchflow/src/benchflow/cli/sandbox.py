"""`bench sandbox`: sandboxes on this machine."""

import time

from benchflow_contracts import ReapPolicy, SandboxRecord, UsageError
from benchflow_engine.options import RunOptions
from benchflow_engine.planes import open_provider
from benchflow_testing import CheckResult, check_sandbox

from .flags import Json, Run
from .output import note, print_json, print_table

_SHOWN = ("scope", "slot", "attempt", "rollout", "node")
"""Parts of the identity with a column of their own."""


async def list_sandboxes(
    *,
    options: Run = RunOptions(),
    scope: str | None = None,
    label: tuple[str, ...] = (),
    json: Json = False,
) -> None:
    """List the sandboxes of this machine, also those of ended runs.

    Examples:
        bench sandbox list
        bench sandbox list --sandbox docker --scope 2026-11-21

    Args:
        options: The provider.
        scope: Name of the directory of a job, whose sandboxes are meant (default: any).
        label: Label of the sandboxes, as KEY=VALUE (default: any). Repeatable.
    """
    policy = ReapPolicy(scope=scope, labels=_labels(label))
    async with open_provider(options) as provider:
        found = [r async for r in provider.sandboxes(scope=scope) if policy.selects(r.identity)]
    now = time.time()
    if json:
        print_json([{**r.model_dump(mode="json"), "overdue": r.overdue(now)} for r in found])
        return
    columns = ("sandbox", "owner", "age", "deadline", *_SHOWN)
    print_table(columns, [_row(record, now) for record in found], empty="no sandboxes")


def _row(record: SandboxRecord, now: float) -> tuple[str, ...]:
    deadline = record.identity.deadline
    left = None if deadline is None else deadline - now
    due = "-" if left is None else f"in {left:.0f}s" if left >= 0 else f"overdue by {-left:.0f}s"
    named = (str(getattr(record.identity, key) or "-") for key in _SHOWN)
    owner = {True: "active", False: "ended", None: "unknown"}[record.owner_alive]
    return (record.id, owner, f"{now - record.created_at:.0f}s", due, *named)


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    for text in given:
        if not text.partition("=")[0] or "=" not in text:
            raise UsageError(f"--label {text!r} is not a label", hint="write KEY=VALUE")
    return dict(text.split("=", 1) for text in given)


async def prune(
    *,
    options: Run = RunOptions(),
    scope: str | None = None,
    label: tuple[str, ...] = (),
    overdue: bool = False,
    images: bool = False,
    dry_run: bool = False,
    json: Json = False,
) -> None:
    """Delete the processes, mounts and files of runs that ended without a teardown.

    Only sandboxes of BenchFlow are deleted. --overdue also deletes sandboxes of active runs
    that are past their deadline.

    Examples:
        bench sandbox prune --dry-run
        bench sandbox prune --sandbox docker --scope 2026-11-21

    Args:
        options: The provider.
        scope: Name of the directory of a job, whose sandboxes are meant (default: any).
        label: Label of the sandboxes, as KEY=VALUE (default: any). Repeatable.
        overdue: Sandboxes of active runs that are past their deadline, too. Their rollouts fail.
        images: Unused images that were built from Dockerfiles of tasks, too.
        dry_run: List of the sandboxes only; nothing is deleted.
    """
    async with open_provider(options) as provider:
        policy = ReapPolicy(
            scope=scope,
            labels=_labels(label),
            overdue=overdue,
            built_images=images,
            dry_run=dry_run,
        )
        removed = await provider.reap(policy)
        records = [r async for r in provider.sandboxes() if r.owner_alive is not False]
        late = [r for r in records if r.overdue(time.time())]
    if json:
        print_json([record.model_dump(mode="json") for record in removed])
        return
    verb = "would delete" if dry_run else "deleted"
    note(f"{verb} {len(removed)} left-over sandboxes")
    for record in removed:
        note(f"  {record.id}")
    if late and not overdue:
        note(f"{len(late)} of unfinished runs are past their deadline: --overdue deletes them, too")
        for record in late:
            note(f"  {record.id}")


async def check(
    *,
    options: Run = RunOptions(),
    only: tuple[str, ...] = (),
    base: str | None = None,
    json: Json = False,
) -> int:
    """Run the conformance checks that each provider must pass, and list what the provider can do.

    Examples:
        bench sandbox check
        bench sandbox check --sandbox docker --base python:3.12-slim
        bench sandbox check --sandbox my-provider --json

    Args:
        options: The provider.
        only: Name of a check to run (default: all). Repeatable.
        base: Image with a shell and python3, for the checks of builds and services (default:
            these checks are skipped).
    """

    def on_result(result: CheckResult) -> None:
        if not json:
            reason = f"  {result.reason}" if result.reason else ""
            note(f"{result.status:>7}  {result.name}{reason}")

    async with open_provider(options) as provider:
        report = await check_sandbox(provider, base=base, only=only or None, on_result=on_result)
    failed = len(report.failed)
    if json:
        print_json(
            {
                "checks": [result.model_dump(mode="json") for result in report],
                "abilities": [ability.model_dump(mode="json") for ability in report.abilities],
            }
        )
    else:
        note(str(report))
        note(f"{len(report)} checks, {failed} failed")
    return int(failed > 0)
