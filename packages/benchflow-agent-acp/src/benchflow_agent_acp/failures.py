"""Agent failures of this package, and how to take one out of a group."""

from typing import cast

from benchflow_contracts import AgentError

from .framing import as_object


class AgentReplyError(AgentError):
    """The agent answered a request with a JSON-RPC error. The connection lives on.

    Attributes:
        code: The JSON-RPC code, 0 when the agent sent none.
    """

    code: int = 0

    @classmethod
    def of(cls, agent: str, method: str, error: object) -> "AgentReplyError":
        """Build it from the `error` member of a response, whatever that is."""
        body = as_object(error) or {"message": error}
        detail = str(body.get("message"))[:500]
        if body.get("data") is not None:
            detail += f" ({str(body['data'])[:500]})"
        failure = cls(f"agent {agent!r} refused {method!r}: {detail}")
        code = body.get("code")
        failure.code = code if isinstance(code, int) else 0
        return failure


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first leaf of a task group's failures: the cause of the others."""
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return first_failure(cast("BaseExceptionGroup[BaseException]", first))
    return first
