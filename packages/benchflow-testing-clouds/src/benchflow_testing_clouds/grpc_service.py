"""Small parts of a gRPC server."""

import re
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

Refusal = GRPCError
"""The answer to a call that is refused."""

Stream = Any
"""A `grpclib.server.Stream`. Its messages are classes of generated code without types."""


class GrpcService:
    """The methods of `implementation` as the service of a generated base class.

    The call `TaskExecStart` is the method `task_exec_start`. A call without a method is answered
    with UNIMPLEMENTED.
    """

    def __init__(self, base: type, implementation: object) -> None:
        self._base, self._implementation = base, implementation

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        own = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        return getattr(self._implementation, own, _refuse)

    def __mapping__(self) -> dict[str, Handler]:
        generated: Any = self._base
        handlers: dict[str, Handler] = generated.__mapping__(self)
        return handlers

    def served(self) -> set[str]:
        """Return the names of the calls that have a method."""
        every: dict[str, Any] = self.__mapping__()
        return {name.rpartition("/")[2] for name in every if every[name].func is not _refuse}


async def _refuse(stream: Stream) -> None:
    # grpclib's own refusal of an unknown call lacks a header, and reaches the client as UNKNOWN.
    del stream
    raise Refusal(Status.UNIMPLEMENTED, "this server does not serve the call")


async def take(stream: Stream, known: set[str]) -> Any:  # noqa: ANN401
    """Return the request of a call. Fields that the server does not know are refused.

    Raises:
        Refusal: INVALID_ARGUMENT.
    """
    request = await stream.recv_message()
    refuse_unknown(request, known)
    return request


def refuse_unknown(message: Any, known: set[str]) -> None:  # noqa: ANN401
    """Refuse a message with a field that is set and not known.

    Raises:
        Refusal: INVALID_ARGUMENT.
    """
    unknown = {each.name for each, _ in message.ListFields()} - known
    fields: Any = UnknownFieldSet(message)
    newer = [str(each.field_number) for each in fields]
    if unknown or newer:
        raise Refusal(Status.INVALID_ARGUMENT, f"unknown fields: {sorted(unknown) + newer}")


async def answer(stream: Stream, message: object) -> None:
    """Send the one answer of a call."""
    await stream.send_message(message)
