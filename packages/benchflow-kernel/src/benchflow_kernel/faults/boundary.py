"""Attribute each failure to one boundary."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import cast

from benchflow_contracts import (
    AgentError,
    BenchFlowError,
    Boundary,
    Cause,
    EnvironmentError_,
    HostError,
    ManifestError,
    NodeError,
    RewardError,
    SandboxError,
    SnapshotError,
    StoreError,
    TaskError,
    UsageError,
    blame,
    caused_outside,
    host_error,
    host_is_short,
)

_ERRORS: Mapping[Boundary, type[BenchFlowError]] = MappingProxyType(
    {
        "usage": UsageError,
        "task": TaskError,
        "manifest": ManifestError,
        "sandbox": SandboxError,
        "agent": AgentError,
        "environment": EnvironmentError_,
        "reward": RewardError,
        "snapshot": SnapshotError,
        "store": StoreError,
        "internal": BenchFlowError,
    }
)


_DOING: Mapping[str, str] = MappingProxyType({"internal": "run the rollout"})


@contextmanager
def boundary(name: Boundary) -> Generator[None, None, None]:
    """Attribute failures of the block to the boundary `name`.

    A plain exception of an extension is wrapped into the boundary's error, with its
    type and text; a shortage of the host becomes a `HostError`. A BenchFlowError knows its own
    boundary and passes unchanged, as does cancellation.
    """
    try:
        yield
    except BenchFlowError:
        raise
    except Exception as error:
        raise classify(error, name) from error


def classify(error: Exception, name: Boundary) -> BenchFlowError:
    """Return `error` as a BenchFlowError.

    Of a group, return the first one. One that the host or the operator caused comes before it.
    """
    leaves = _leaves(error)
    known = [leaf for leaf in leaves if isinstance(leaf, BenchFlowError)]
    if known:
        return next((leaf for leaf in known if caused_outside(leaf)), known[0])
    first = next((leaf for leaf in leaves if host_is_short(leaf)), leaves[0])
    if host_is_short(first):
        return host_error(_DOING.get(name, f"continue with the {name}"), first)
    return _ERRORS[name](f"{type(first).__name__}: {first}")


def node_error(error: BenchFlowError, cause: Cause | None = None) -> NodeError:
    """Return `error`, with its cause, as the record that goes into the tree.

    Without a cause, no agent has run. What a shortage of the host caused may be tried again.
    """
    cause = cause or blame(error, inside="task")
    short = cause.is_temporary and not isinstance(error, StoreError)
    # The host's shortage needs another remedy than a sandbox that does not work.
    plain = short and error.hint in {SandboxError.default_hint, BenchFlowError.default_hint}
    return NodeError(
        boundary=error.boundary,
        type=type(error).__name__,
        message=str(error),
        hint=HostError.default_hint if plain else error.hint,
        retryable=(error.retryable or short) and not cause.stops_job,
        retry_after=cause.retry_after,
        stops_job=cause.stops_job,
        caused_by=cause.by,
    )


def _leaves(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [error]
