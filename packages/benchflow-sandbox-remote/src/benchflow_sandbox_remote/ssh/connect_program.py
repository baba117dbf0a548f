"""The program of one connection, which ssh starts on another host as `python -c SOURCE PROVIDER`.

It starts the server if none runs, and copies the standard streams to the server's socket. It uses
only the standard library of Python 3.11, so that it starts fast.
"""

import fcntl
import os
import selectors
import socket
import subprocess
import sys
import time

START_SECONDS = 60
PIECE = 1 << 16


def state_directory() -> str:
    """Return the directory of the socket, which only this user can reach."""
    given = os.environ.get("BENCHFLOW_REMOTE_STATE")
    if not given and os.geteuid() == 0:
        given = "/var/lib/benchflow/remote"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
    path = given or os.path.join(home, "benchflow/remote")  # noqa: PTH118
    os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103
    return path


def try_connect(path: str) -> "socket.socket | None":
    """Connect to the server, if it runs."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def start(provider: str, path: str) -> socket.socket:
    """Start a server, and connect to it. Two callers do not start two."""
    with open(path + ".lock", "w") as lock, open(path + ".log", "ab") as log:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = try_connect(path)
        if connection is None:
            command = [sys.executable, "-m", "benchflow_sandbox_remote.ssh", provider, path]
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            connection = wait_for(server, path)
    return connection


def wait_for(server: "subprocess.Popen[bytes]", path: str) -> socket.socket:
    """Connect to a server that starts."""
    ends = time.monotonic() + START_SECONDS
    while (connection := try_connect(path)) is None:
        if server.poll() is not None or time.monotonic() > ends:
            with open(path + ".log") as text:  # noqa: PTH123
                sys.exit(text.read()[-2000:] or "the server did not start")
        time.sleep(0.05)
    return connection


def copy(connection: socket.socket) -> None:
    """Copy both ways until one side has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                is_answer = key.fileobj is connection
                data = connection.recv(PIECE) if is_answer else os.read(0, PIECE)
                if not data:
                    return
                if not is_answer:
                    connection.sendall(data)
                while is_answer and data:
                    data = data[os.write(1, data) :]


def main(provider: str) -> None:
    """Connect and copy."""
    path = os.path.join(state_directory(), provider + ".socket")  # noqa: PTH118
    connection = try_connect(path) or start(provider, path)
    with connection:
        copy(connection)


if __name__ == "__main__":
    main(sys.argv[1])
