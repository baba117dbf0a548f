"""What a borrower did in a lent sandbox, for the record of the sandbox's owner."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from benchflow_contracts import BenchFlowError, ExecResult

from .leases import CommandRequest


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an action, for the record."""

    text: str
    is_error: bool = False
    is_cut: bool = False
    exit_code: int | None = None


class ActionRecord(Protocol):
    """Records the actions of a borrower."""

    def begin(self, name: str, arguments: Mapping[str, Any]) -> Callable[[ActionResult], None]:
        """Note that an action begins. Return what records its result."""
        ...


@dataclass(slots=True)
class ActionEnd:
    """The result of an action, which the block of `recorded` sets."""

    result: ActionResult


@contextmanager
def recorded(
    record: ActionRecord | None, name: str, arguments: Mapping[str, Any]
) -> Generator[ActionEnd]:
    """Record the block as an action, with its result or its error.

    A block that is cancelled has no result. The owner records it when the turn ends.
    """
    end = ActionEnd(ActionResult("done"))
    if record is None:
        yield end
        return
    on_end = record.begin(name, arguments)
    try:
        yield end
    except BenchFlowError as error:
        on_end(ActionResult(f"{error}", is_error=True))
        raise
    on_end(end.result)


def arguments_of(request: CommandRequest) -> dict[str, Any]:
    """Return a command for the record. Of variables, only the names are recorded."""
    command = request.cmd if isinstance(request.cmd, str) else list(request.cmd)
    arguments: dict[str, Any] = {"command": command}
    if request.cwd is not None:
        arguments["cwd"] = request.cwd
    if request.env:
        arguments["env"] = sorted(request.env)
    return arguments


def result_of(result: ExecResult) -> ActionResult:
    """Return the result of a command for the record."""
    dropped = result.stdout_dropped + result.stderr_dropped
    text = "\n".join(part for part in (result.stdout, result.stderr) if part)
    if dropped:
        text += f"\n[{dropped} more bytes]"
    if not result.ok:
        text += f"\n[exit code {result.exit_code}]"
    return ActionResult(text or "[no output]", not result.ok, dropped > 0, result.exit_code)
