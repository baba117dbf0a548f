"""Probe services from inside the sandbox.

`main` reads one JSON argument, probes until all answer or the round is over, and prints
one JSON line. It imports few modules of the standard library, because it starts once per round.
"""

import json
import socket
import sys
import time
from collections.abc import Mapping

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2
STATUS_LINE = 12
"""The length of a status such as `HTTP/1.1 200`."""


def ask(probe: Mapping[str, str], timeout: float) -> str:
    """Return `""` for a connection, with a `path` for a 2xx or 3xx answer, else the reason."""
    try:
        with socket.create_connection((probe["host"], int(probe["port"])), timeout) as conn:
            if not probe["path"]:
                return ""
            return _http_answer(_encrypted(conn) if probe["tls"] else conn, probe)
    except OSError as exc:
        return f"{type(exc).__name__}: {exc}"


def _encrypted(conn: socket.socket) -> socket.socket:
    import ssl  # noqa: PLC0415 - slow to import, and rarely needed

    # Loopback inside one sandbox: the probe needs an answer, not an authentic server.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(conn)


def _http_answer(conn: socket.socket, probe: Mapping[str, str]) -> str:
    conn.sendall(request_of(probe))
    answer = b""
    while len(answer) < STATUS_LINE and (data := conn.recv(4096)):
        answer += data
    return problem_of(answer)


def request_of(probe: Mapping[str, str]) -> bytes:
    """Return the request of an HTTP probe."""
    lines = (f"GET {probe['path']} HTTP/1.1", f"Host: {probe['host']}:{probe['port']}")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode()


def problem_of(answer: bytes) -> str:
    """Return the problem of an HTTP answer from its first bytes, `""` for 2xx and 3xx."""
    status = answer[:STATUS_LINE].decode("ascii", "replace")
    if status.startswith("HTTP/1.") and status[8:10] in (" 2", " 3"):
        return ""
    return f"answered {status!r}" if status else "closed without an answer"


def ask_all(probes: Mapping[str, Mapping[str, str]], seconds: float) -> Mapping[str, str]:
    """Repeat each probe until it succeeds, at most for `seconds`."""
    end = time.monotonic() + seconds
    answers = dict.fromkeys(probes, "not asked")
    pause = _FIRST_PAUSE
    while True:
        for name, probe in probes.items():
            if answers[name]:
                answers[name] = ask(probe, max(0.05, end - time.monotonic()))
        if not any(answers.values()) or time.monotonic() + pause >= end:
            return answers
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def main() -> None:
    """Run the request in the first argument; print the answers as JSON."""
    request = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(ask_all(request["probes"], request["seconds"])))
