"""Probe services from the host, without starting a process inside."""

import asyncio
import socket
from collections.abc import Callable, Mapping

from benchflow_contracts import SupportsTcpConnect
from benchflow_contracts.pausing import running_time, running_timeout

from .in_sandbox.probe import STATUS_LINE, problem_of, request_of

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2

Probe = Mapping[str, str]


def can_probe(probe: Probe) -> bool:
    """Return whether a probe needs only IPv4 loopback of the sandbox, without encryption."""
    return probe["host"] in ("localhost", "127.0.0.1") and not probe["tls"]


class TcpProber:
    """Repeats probes when a service prints something or ends, else after growing pauses."""

    def __init__(
        self, sandbox: SupportsTcpConnect, activity: asyncio.Event, has_ended: Callable[[], object]
    ) -> None:
        self._sandbox = sandbox
        self._activity = activity
        self._has_ended = has_ended

    async def ask_all(self, probes: Mapping[str, Probe], seconds: float) -> dict[str, str]:
        """Repeat until each probe has succeeded or a service has ended, at most for `seconds`.

        Return the problem of each probe by name, `""` for success. Only the status of a
        response is read.
        """
        end = running_time() + seconds
        answers = dict.fromkeys(probes, "not asked")
        pause = _FIRST_PAUSE
        while True:
            self._activity.clear()
            await self._ask_open(probes, answers, end)
            left = end - running_time()
            if not any(answers.values()) or left <= 0 or self._has_ended():
                return answers
            try:
                async with running_timeout(min(pause, left)):
                    await self._activity.wait()
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask_open(
        self, probes: Mapping[str, Probe], answers: dict[str, str], end: float
    ) -> None:
        async def probe_service(name: str) -> None:
            answers[name] = await self._ask(probes[name], max(0.05, end - running_time()))

        async with asyncio.TaskGroup() as group:
            for name in [name for name, problem in answers.items() if problem]:
                group.create_task(probe_service(name))

    async def _ask(self, probe: Probe, timeout: float) -> str:
        try:
            async with running_timeout(timeout):
                with await self._sandbox.connect_tcp(int(probe["port"])) as conn:
                    return await _answer(conn, probe) if probe["path"] else ""
        except OSError as exc:  # a TimeoutError is one
            return f"{type(exc).__name__}: {exc}"


async def _answer(conn: socket.socket, probe: Probe) -> str:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(conn, request_of(probe))
    answer = b""
    while len(answer) < STATUS_LINE and (data := await loop.sock_recv(conn, 4096)):
        answer += data
    return problem_of(answer)
