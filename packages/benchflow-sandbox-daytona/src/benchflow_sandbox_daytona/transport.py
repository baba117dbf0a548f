"""The link over a session of Daytona, which carries only lines of text."""

import secrets
from collections.abc import Awaitable, Callable

from benchflow_sandbox_remote import PROGRAM, LineTransport, QueuedTransport
from daytona import AsyncSandbox, SessionExecuteRequest

from .errors import typed_errors

_MAX_LOG = 1 << 28
"""Bytes of output after which a connection ends: Daytona keeps them in the sandbox's files until
the session is deleted."""
_SECONDS = 20


async def start_session(sandbox: AsyncSandbox) -> LineTransport:
    """Connect to the link by a command of a session of its own.

    Raises:
        SandboxError: See `typed_errors`.
    """
    process, session = sandbox.process, f"benchflow-{secrets.token_hex(8)}"
    # Input before the start of the command is lost, so the first line says that it has started.
    request = SessionExecuteRequest(
        command=f"echo ready; {PROGRAM} dial lines", run_async=True, suppress_input_echo=True
    )
    with typed_errors("connect to the link"):
        await process.create_session(session, request_timeout=_SECONDS)
        command = await process.execute_session_command(session, request, timeout=_SECONDS)

    async def receive(put: Callable[[str], Awaitable[None]]) -> None:
        await process.get_session_command_logs_async(session, command.cmd_id, put, lambda _: None)

    async def send(text: str) -> None:
        await process.send_session_command_input(session, command.cmd_id, text, _SECONDS)

    async def close() -> None:
        await process.delete_session(session, request_timeout=5)

    transport = QueuedTransport(receive, send, close=close, most=_MAX_LOG)
    return await LineTransport.begin(transport, b"ready")
