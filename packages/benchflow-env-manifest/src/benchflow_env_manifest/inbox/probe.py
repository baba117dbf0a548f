"""Ask services whether they are up, from inside the sandbox.

`main` reads one JSON argument, asks until all answer or the round is over, and prints
one JSON line. Standard library only.
"""

import http.client
import json
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2


def http_answer(url: str, timeout: float) -> str:
    """Return `""` for a 2xx or 3xx answer, else what is wrong."""
    parts = urlsplit(url)
    assert parts.hostname is not None, "the manifest's parser demands one"
    conn: http.client.HTTPConnection
    if parts.scheme == "https":
        # Loopback inside one box: the question is whether it answers, not who it is.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        conn = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout, context=context
        )
    else:
        conn = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        conn.request("GET", target, headers={"Connection": "close"})
        status = conn.getresponse().status
    except (OSError, http.client.HTTPException) as exc:
        return f"{type(exc).__name__}: {exc}"
    finally:
        conn.close()
    return "" if 200 <= status < 400 else f"HTTP status {status}"


def tcp_answer(port: int, timeout: float) -> str:
    """Return `""` when the port accepts a connection, else what is wrong."""
    try:
        socket.create_connection(("localhost", port), timeout=timeout).close()
    except OSError as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def ask(name: str, timeout: float) -> str:
    """Ask one probe: a URL, or `tcp:port`."""
    if name.startswith("tcp:"):
        return tcp_answer(int(name.removeprefix("tcp:")), timeout)
    return http_answer(name, timeout)


def ask_all(names: list[str], seconds: float) -> Mapping[str, str]:
    """Ask until every probe has answered once, at most for `seconds`."""
    end = time.monotonic() + seconds
    answers = dict.fromkeys(names, "not asked")
    pause = _FIRST_PAUSE
    while True:
        for name in names:
            if answers[name]:
                answers[name] = ask(name, max(0.05, end - time.monotonic()))
        if not any(answers.values()) or time.monotonic() + pause >= end:
            return answers
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def main() -> None:
    """Run the request in the first argument; print the answers as JSON."""
    request = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(ask_all(request["probes"], request["seconds"])))
