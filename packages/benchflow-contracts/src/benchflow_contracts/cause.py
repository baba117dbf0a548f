"""Who caused a failure: the one rule that decides between a score of 0 and no score."""

import errno
import tempfile
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from ._model import Model
from .errors import AccountError, BenchFlowError, CapacityError, Culprit, HostError
from .scratch import PREFIX


class Cause(Model):
    """Who caused a failure, and what happened. Its text is such as `agent: out of memory`."""

    by: Culprit
    what: str
    hint: str | None = None
    """One line that tells the reader what to do about it."""
    retry_after: float | None = None
    """Seconds until the next try, if the provider says so."""
    stops_job: bool = False
    """Whether every other rollout of the job would fail in the same way."""

    @property
    def is_temporary(self) -> bool:
        """Whether the host caused the failure, and a retry may succeed."""
        return self.by == "host" and not self.stops_job

    def __str__(self) -> str:
        return f"{self.by}: {self.what}"


def blame(error: BaseException, *, inside: Culprit) -> Cause:
    """Return who caused `error`, from the chain of errors and groups that it was raised from.

    A `HostError` or an `AccountError` in the chain decides: it never becomes a score, whatever
    wraps it. Otherwise the first error that knows its culprit decides. `inside` is the culprit of
    what happens in the sandbox that failed: the agent in its own sandbox, the task before that.
    """
    chain = _chain(error)
    outside = (each for each in chain if isinstance(each, HostError | AccountError))
    knowing = (each for each in chain if _knows_culprit(each))
    first = next(outside, None) or next(knowing, None)
    if first is None:
        return Cause(by="unknown", what=str(error) or type(error).__name__)
    if not isinstance(first, BenchFlowError):
        return Cause(by="host", what=str(error), hint=HostError.default_hint)
    return Cause(
        by=inside if first.caused_by == "inside" else first.caused_by,
        what=str(first),
        hint=first.hint,
        retry_after=first.retry_after if isinstance(first, CapacityError) else None,
        stops_job=first.stops_job,
    )


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    rest: list[BaseException] = [error]
    while rest:
        each = rest.pop()
        # An error may be raised from itself.
        if any(each is earlier for earlier in chain):
            continue
        chain.append(each)
        if each.__cause__ is not None:
            rest.append(each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            rest += reversed(cast("BaseExceptionGroup[BaseException]", each).exceptions)
    return chain


def _knows_culprit(error: BaseException) -> bool:
    if isinstance(error, BenchFlowError) and error.caused_by != "unknown":
        return True
    return host_is_short(error)


def caused_outside(error: BaseException) -> bool:
    """Return whether the host or the operator caused `error`, so that it is not a score."""
    return blame(error, inside="agent").by in {"host", "operator"}


def caused_inside(error: BaseException) -> bool:
    """Return whether a process inside the sandbox that failed caused `error`; see `blame`."""
    # Only `inside` leads to this culprit.
    return blame(error, inside="agent").by == "agent"


_SHORT = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.EIO, errno.EROFS),
    }
)


_NO_THREAD = frozenset({"can't start new thread", "can't allocate lock"})
_NO_TEMPORARY = "No usable temporary directory"
_OUR_SCRATCH = ("bf-", "benchflow-")


def host_is_short(error: BaseException) -> bool:
    """Return whether an error of Python itself says that the host lacks a resource.

    Other packages' subclasses of `OSError` may report an event inside a sandbox.
    """
    if isinstance(error, RuntimeError):
        return str(error) in _NO_THREAD
    if isinstance(error, FileNotFoundError) and _lost_temporary(error):
        return True
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        return error.errno in _SHORT
    return isinstance(error, MemoryError)


def _lost_temporary(error: FileNotFoundError) -> bool:
    """Return whether the temporary directory, or our directory in it, was removed."""
    if _NO_TEMPORARY in str(error.strerror):
        return True
    if not isinstance(error.filename, str) or tempfile.tempdir is None:
        return False
    below = Path(error.filename)
    if not below.is_relative_to(tempfile.tempdir):
        return False
    parts = below.relative_to(tempfile.tempdir).parts
    if not parts or not parts[0].startswith(_OUR_SCRATCH):
        return False
    # A file may be missing in a directory that exists.
    own = parts[: 2 if parts[0].startswith(PREFIX) else 1]
    return not Path(tempfile.tempdir, *own).exists()


def host_error(doing: str, error: BaseException) -> HostError:
    """Return a `HostError`: the host could not do `doing`. Name the path if there is one."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    at = f": {error.filename!r}" if isinstance(error, OSError) and error.filename else ""
    return HostError(f"cannot {doing}: {why or type(error).__name__}{at} (on the host)")


def refuse_shortage(doing: str, error: OSError) -> None:
    """Raise `HostError` if `error` says that the host lacks a resource."""
    if host_is_short(error):
        raise host_error(doing, error) from error


@runtime_checkable
class SupportsHostShortage(Protocol):
    """A sandbox that reports what the host refused to its processes."""

    def host_shortage(self) -> str | None:
        """Return what the host refused to processes inside, unless a limit of the sandbox did it.

        Return `None` if nothing was refused, and after the sandbox was deleted.
        """
        ...


def expect_host(sandbox: object) -> None:
    """Raise `HostError` if the host refused a resource to the processes of `sandbox`.

    The results of such processes say nothing about the agent or the tests.
    """
    # An isinstance check of a protocol costs more than writing an event.
    if not hasattr(sandbox, "host_shortage"):
        return
    short = cast("SupportsHostShortage", sandbox).host_shortage()
    if short is not None:
        raise HostError(f"the host failed processes of the sandbox: {short}")


@runtime_checkable
class SupportsMemoryKills(Protocol):
    """A sandbox that counts the processes that its own memory limit killed."""

    def memory_kills(self) -> int:
        """Return how many processes the memory limit killed so far; 0 after the deletion."""
        ...
