"""Who caused a failure: the one rule that decides between a score of 0 and no score."""

import errno

from ._model import Model
from .errors import BenchFlowError, Culprit, HostError


class Cause(Model):
    """Who caused a failure, and what happened. Its text is such as `agent: out of memory`."""

    by: Culprit
    what: str

    def __str__(self) -> str:
        return f"{self.by}: {self.what}"


def blame(error: BaseException, *, inside: Culprit) -> Cause:
    """Return who caused `error`, by it and by what it was raised from.

    The first error of that chain that knows its culprit decides. `inside` is the culprit of what
    happens in the sandbox that failed: the agent in its own one, the task before the agent ran.
    """
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, BenchFlowError) and each.caused_by != "unknown":
            by = inside if each.caused_by == "inside" else each.caused_by
            return Cause(by=by, what=str(each))
        if host_is_short(each):
            return Cause(by="host", what=str(error))
        each = each.__cause__
    return Cause(by="unknown", what=str(error) or type(error).__name__)


def caused_inside(error: BaseException) -> bool:
    """Whether whoever ran in the sandbox that failed caused `error`, as `blame` sees it."""
    # Nothing but `inside` is ever the agent's.
    return blame(error, inside="agent").by == "agent"


_SHORT = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.EIO, errno.EROFS),
    }
)


_NO_THREAD = "can't start new thread"


def host_is_short(error: BaseException) -> bool:
    """Whether an error of Python itself says that the host lacks something.

    Subclasses of `OSError` that others define may report what happened inside a sandbox.
    """
    if isinstance(error, RuntimeError):
        return str(error) == _NO_THREAD
    if isinstance(error, OSError):
        return type(error).__module__ == "builtins" and error.errno in _SHORT
    return isinstance(error, MemoryError)


def host_error(doing: str, error: BaseException) -> HostError:
    """Return the error of a host that could not do its part of `doing`."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    return HostError(f"cannot {doing}: {why or type(error).__name__} (on the host)")
