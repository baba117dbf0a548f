"""A Postgres server of a test, which only this machine reaches, by a socket."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg

PORT = 5999


@contextmanager
def running_postgres(programs: Path) -> Generator[str]:
    """Start a server, and yield the URL of its first database. `programs` has `initdb`."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pg-") as name:
        data, user = Path(name, "data"), None
        if os.geteuid() == 0:
            user = "nobody"
            shutil.chown(name, user)

        def run(program: str, *words: str) -> None:
            command = [str(programs / program), "-D", str(data), *words]
            subprocess.run(command, check=True, user=user, cwd=name, stdout=subprocess.DEVNULL)

        run("initdb", "-U", "bench", "-A", "trust", "--no-sync")
        # No test cuts the power: a busy disk would hold up each new database and the end.
        options = f"-k {name} -c listen_addresses='' -c port={PORT} -c fsync=off"
        run("pg_ctl", "-o", options, "-l", str(Path(name, "log")), "-w", "start")
        try:
            yield f"postgresql://bench@/postgres?host={name}&port={PORT}"
        finally:
            run("pg_ctl", "-m", "immediate", "-w", "stop")


def new_database(url: str) -> str:
    """Make an empty database on the server of `url`, and return its URL."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
    return url.replace("/postgres?", f"/{name}?")
