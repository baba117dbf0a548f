"""`bench sandbox`: sandboxes on this machine."""

import time

from benchflow_contracts import ReapPolicy
from benchflow_contracts.testing import CheckResult, check_sandbox

from benchflow.options import RunOptions
from benchflow.planes import open_provider

from .flags import Json, Run
from .output import note, print_json, print_table


async def list_sandboxes(
    *,
    options: Run = RunOptions(),
    json: Json = False,
) -> None:
    """List the sandboxes of this machine, also those whose run is dead.

    Examples:
        bench sandbox list

    Args:
        options: --sandbox names the provider.
    """
    async with open_provider(options) as provider:
        records = [record async for record in provider.sandboxes()]
    if json:
        print_json([record.model_dump(mode="json") for record in records])
        return
    now = time.time()
    rows = [
        (r.id, "alive" if r.owner_alive else "dead", f"{now - r.created_at:.0f}s", dict(r.labels))
        for r in records
    ]
    print_table(("sandbox", "owner", "age", "labels"), rows, empty="no sandboxes")


async def prune(
    *,
    options: Run = RunOptions(),
    dry_run: bool = False,
    json: Json = False,
) -> None:
    """Remove the processes, mounts and files that dead runs left behind.

    Sandboxes of a living run, and whatever is not ours, are never touched.

    Examples:
        bench sandbox prune --dry-run

    Args:
        options: --sandbox names the provider.
        dry_run: Only say what would be removed.
    """
    async with open_provider(options) as provider:
        removed = await provider.reap(ReapPolicy(dry_run=dry_run))
    if json:
        print_json([record.model_dump(mode="json") for record in removed])
        return
    verb = "would remove" if dry_run else "removed"
    note(f"{verb} {len(removed)} left-over sandboxes")
    for record in removed:
        note(f"  {record.id}")


async def check(
    *,
    options: Run = RunOptions(),
    only: tuple[str, ...] = (),
    json: Json = False,
) -> int:
    """Run the conformance checks that every provider must pass.

    Examples:
        bench sandbox check
        bench sandbox check --sandbox my-provider --json

    Args:
        options: --sandbox names the provider.
        only: Run only the checks of these names.
    """

    def tell(result: CheckResult) -> None:
        if not json:
            reason = f"  {result.reason}" if result.reason else ""
            note(f"{result.status:>7}  {result.name}{reason}")

    async with open_provider(options) as provider:
        results = await check_sandbox(provider, only=only or None, on_result=tell)
    failed = sum(result.status == "failed" for result in results)
    if json:
        print_json([result.model_dump(mode="json") for result in results])
    else:
        note(f"{len(results)} checks, {failed} failed")
    return int(failed > 0)
