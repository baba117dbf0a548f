"""The requests to another host, and its answers. Each is one line of JSON."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from benchflow_contracts import errors
from benchflow_contracts.errors import BenchFlowError, HostError, SandboxError, UsageError

VERSION: Final = 1
MAX_LINE: Final = 1 << 20
MAX_FILE: Final = 1 << 26
_ERRORS: Final[Mapping[str, type[SandboxError] | type[UsageError]]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, SandboxError | UsageError)
}


class LineWriter(Protocol):
    """Writes bytes, such as an `asyncio.StreamWriter`."""

    def write(self, data: bytes, /) -> object:
        """Queue `data`."""
        ...


def write_message(writer: LineWriter, message: Mapping[str, Any]) -> None:
    """Write one message."""
    writer.write(json.dumps(message).encode() + b"\n")


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Read one message; `None` at the end.

    Raises:
        SandboxError: The line is too long, or is not a JSON object.
    """
    try:
        line = await reader.readline()
    except ValueError as error:
        raise SandboxError(f"a message has more than {MAX_LINE} bytes") from error
    if not line.endswith(b"\n"):
        return None
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SandboxError(f"not a message of a host of BenchFlow: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise SandboxError(f"not a message of a host of BenchFlow: {line[:80]!r}")
    return message  # pyright: ignore[reportUnknownVariableType]


def message_of(error: BenchFlowError) -> dict[str, Any]:
    """Return the answer to a request that failed."""
    name = type(error).__name__
    base = next((each.__name__ for each in type(error).mro() if each.__name__ in _ERRORS), name)
    more = {"hint": error.hint, "retryable": error.retryable, "caused_by": error.caused_by}
    return {"error": base, "message": str(error), **more}


def error_of(answer: Mapping[str, Any], host: str) -> SandboxError | UsageError:
    """Return the error of an answer. An answer with wrong fields is a `HostError`."""
    kind = _ERRORS.get(str(answer.get("error")), SandboxError)
    message, hint = f"{host}: {answer.get('message')}", answer.get("hint")
    try:
        error = kind(message, hint=str(hint) if hint else None)
    except TypeError:
        return HostError(message)
    error.retryable = answer.get("retryable") is True
    if answer.get("caused_by") in {"inside", "host", "operator"}:
        error.caused_by = answer["caused_by"]
    return error
