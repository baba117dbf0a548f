"""`bench sandbox`: sandboxes on this machine and in clouds."""

import time

from benchflow_contracts import ReapPolicy, SandboxRecord, UsageError
from benchflow_engine.flags import RunFlags
from benchflow_engine.leftovers import remove_directories
from benchflow_engine.planes import open_provider
from benchflow_testing import CheckResult, check_sandbox

from .flags import Json
from .output import note, print_json, print_table
from .rollout_flags import Run, configuration

_IDENTITY = ("scope", "slot", "attempt", "rollout", "node")
"""The parts of the identity that have a column."""


async def list_sandboxes(
    *,
    options: Run = RunFlags(),
    scope: str | None = None,
    label: tuple[str, ...] = (),
    json: Json = False,
) -> None:
    """List the sandboxes of this machine or of an account, also those of ended runs.

    Examples:
        bench sandbox list
        bench sandbox list --sandbox docker --scope 2026-11-21

    Args:
        options: The provider.
        scope: Job of the sandboxes, by the name of its directory (default: any).
        label: Label of the sandboxes, as KEY=VALUE (default: any). Repeatable.
    """
    policy = ReapPolicy(scope=scope, labels=_labels(label))
    async with open_provider(configuration(options)) as provider:
        records = [r async for r in provider.sandboxes(scope=scope) if policy.selects(r.identity)]
    now = time.time()
    if json:
        print_json([{**r.model_dump(mode="json"), "overdue": r.overdue(now)} for r in records])
        return
    columns = ("sandbox", "owner", "age", "deadline", *_IDENTITY)
    print_table(columns, [_row(record, now) for record in records], empty="no sandboxes")


def _row(record: SandboxRecord, now: float) -> tuple[str, ...]:
    deadline = record.identity.deadline
    left = None if deadline is None else deadline - now
    due = "-" if left is None else f"in {left:.0f}s" if left >= 0 else f"overdue by {-left:.0f}s"
    parts = (str(getattr(record.identity, key) or "-") for key in _IDENTITY)
    owner = {True: "active", False: "ended", None: "unknown"}[record.owner_alive]
    return (record.id, owner, f"{now - record.created_at:.0f}s", due, *parts)


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise UsageError(f"--label {text!r} is not a label", hint="write KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)


async def prune(
    *,
    options: Run = RunFlags(),
    scope: str | None = None,
    label: tuple[str, ...] = (),
    overdue: bool = False,
    images: bool = False,
    dry_run: bool = False,
    json: Json = False,
) -> None:
    """Delete the processes, mounts and files of runs that ended without a teardown.

    Only sandboxes and temporary directories of BenchFlow are deleted. Temporary directories do
    not name a job, so those of all ended runs are deleted. --overdue also deletes sandboxes of
    active runs that are past their deadline.

    Examples:
        bench sandbox prune --dry-run
        bench sandbox prune --sandbox docker --scope 2026-11-21

    Args:
        options: The provider.
        scope: Job of the sandboxes, by the name of its directory (default: any).
        label: Label of the sandboxes, as KEY=VALUE (default: any). Repeatable.
        overdue: Also sandboxes of active runs that are past their deadline. Their rollouts fail.
        images: Also unused images that were built for tasks, and templates of E2B.
        dry_run: Dry run: the sandboxes and directories are listed and not deleted.
    """
    async with open_provider(configuration(options)) as provider:
        policy = ReapPolicy(
            scope=scope,
            labels=_labels(label),
            overdue=overdue,
            built_images=images,
            dry_run=dry_run,
        )
        deleted = await provider.reap(policy)
        records = [r async for r in provider.sandboxes() if r.owner_alive is not False]
        gone = {record.id for record in deleted}
        records = [r for r in records if r.id not in gone and policy.selects(r.identity)]
        overdue_records = [r for r in records if r.overdue(time.time())]
    directories = [str(path) for path in await remove_directories(dry_run=dry_run)]
    if json:
        sandboxes = [record.model_dump(mode="json") for record in deleted]
        print_json({"sandboxes": sandboxes, "directories": directories})
        return
    verb = "would delete" if dry_run else "deleted"
    kinds = "sandboxes and images" if images else "sandboxes"
    note(f"{verb} {len(deleted)} {kinds} and {len(directories)} temporary directories")
    for name in [*(record.id for record in deleted), *directories]:
        note(f"  {name}")
    _note_others(records, overdue_records if not overdue else [])


def _note_others(records: list[SandboxRecord], overdue: list[SandboxRecord]) -> None:
    """Say why sandboxes stay."""
    if unknown := sum(record.owner_alive is None for record in records):
        note(
            f"{unknown} sandboxes stay, because their runner may live on another machine; each ends"
            " by itself after the last heartbeat of its runner"
        )
    if overdue:
        count = len(overdue)
        note(
            f"{count} sandboxes of active runs are past their deadline; delete them with --overdue"
        )
        for record in overdue:
            note(f"  {record.id}")


async def check(
    *,
    options: Run = RunFlags(),
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

    async with open_provider(configuration(options)) as provider:
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
