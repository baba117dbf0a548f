"""The result of a rollout in one word and one line, for every view of it."""

from benchflow_contracts import Model, RolloutRecord


class Triage(Model):
    """The result of a rollout that has ended. Its texts may come from an agent."""

    status: str
    """`completed`, `ungraded`, `failed` or `cancelled`."""
    boundary: str | None
    """Where the rollout, or its grading, failed. Count failures by the boundary, not the status."""
    reason: str
    """The cause of a missing or lowest reward; empty if the tests gave a reward."""

    @property
    def text(self) -> str:
        """The reason, else the status. An ungraded rollout also has its status here."""
        if not self.reason:
            return self.status
        return f"ungraded, {self.reason}" if self.status == "ungraded" else self.reason


def triage(record: RolloutRecord) -> Triage:
    """Return the result of a rollout in the words of `bench eval show`."""
    error = record.error
    boundary = None if error is None else error.boundary
    reason = ""
    if record.reward is not None and record.cause is not None:
        reason = _first_line(str(record.cause))
    elif error is not None:
        reason = f"{error.boundary}: {_first_line(error.message)}"
    return Triage(status=record.status, boundary=boundary, reason=reason)


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
