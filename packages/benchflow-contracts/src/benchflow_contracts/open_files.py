"""The limit of open files of this process, and what a rollout needs of it."""

import resource
from contextlib import suppress
from typing import Protocol, runtime_checkable

_MAX_FILES = 1 << 20


@runtime_checkable
class HasOpenFilesNeed(Protocol):
    """A provider that knows how many files of this process one rollout opens."""

    @property
    def open_files_per_rollout(self) -> int:
        """The most open files of one rollout: its sandbox, its agent and its grading."""
        ...


def raise_open_files_limit() -> int:
    """Raise the soft limit of this process to its hard one. Return the limit. Idempotent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):  # a sandbox around this process may refuse
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_FILES if soft == resource.RLIM_INFINITY else soft
