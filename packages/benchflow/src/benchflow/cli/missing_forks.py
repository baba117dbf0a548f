"""Reports rollouts without the fork that `--branch-require` asks for."""

from collections.abc import Sequence

from benchflow_engine.options import RunOptions
from benchflow_store import RolloutRecord

from .output import note


def report_missing_forks(records: Sequence[RolloutRecord], options: RunOptions) -> int:
    """Print the completed rollouts without a required fork; return their number."""
    if options.branch_require is None:
        return 0
    missed = [r.rollout_id for r in records if r.status == "completed" and not r.branches]
    if missed:
        more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        note(f"error: no fork in {', '.join(missed[:3])}{more}: no question or turn to fork at")
        note(f"hint: --branch-require {options.branch_require} fails a rollout without such a fork")
    return len(missed)
