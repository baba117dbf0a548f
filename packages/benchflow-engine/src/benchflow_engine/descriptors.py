"""Check before a job starts that its rollouts have enough open files."""

from pathlib import Path

from benchflow_contracts import SandboxProvider, UsageError
from benchflow_contracts.open_files import HasOpenFilesNeed, raise_open_files_limit

_PER_ROLLOUT = 20
"""For a provider that does not state its need. It is more than each of our providers needs."""
_RESERVE = 64
"""For the runner itself: its record, its connections and its programs."""


def check_descriptors(provider: SandboxProvider, concurrency: int) -> None:
    """Raise the limit of open files to the hard one, and refuse a job that needs more.

    The provider must have been made before, because processes of a sandbox get the limit that
    this process had when the module of the provider was loaded.

    Raises:
        UsageError: `concurrency` rollouts at one time need more open files than the limit.
    """
    limit = raise_open_files_limit()
    each = _PER_ROLLOUT
    if isinstance(provider, HasOpenFilesNeed):
        each = provider.open_files_per_rollout
    fixed = len(list(Path("/proc/self/fd").iterdir())) + _RESERVE
    need = fixed + each * concurrency
    if need <= limit:
        return
    largest = (limit - fixed) // each
    remedy = f"raise the hard limit to {need} (`ulimit -Hn`)"
    raise UsageError(
        f"{concurrency} rollouts at one time need about {need} open files ({each} each in sandbox "
        f"{provider.name!r}), and the hard limit of this process is {limit}",
        hint=f"use --concurrency {largest} or less, or {remedy}" if largest > 0 else remedy,
    )
