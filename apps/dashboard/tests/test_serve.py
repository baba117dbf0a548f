"""The server prints its URL, serves, and ends on SIGTERM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

PROGRAM = """
import sys
from pathlib import Path
from benchflow_dashboard import DashboardSettings, serve
settings = DashboardSettings(jobs_dir=Path(sys.argv[1]), index=Path(sys.argv[2]), port=0)
serve(settings, on_ready=lambda url: print(url, flush=True))
"""


def test_the_server_ends_on_sigterm_without_an_error(jobs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(jobs), str(tmp_path / "index.db")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            # The socket listens once the application has started.
            transport = httpx.HTTPTransport(retries=8)
            with httpx.Client(transport=transport, base_url=url, timeout=30) as client:
                assert client.get("/runs").status_code == 200
        finally:
            os.kill(server.pid, signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
        assert server.returncode == 0
        assert "Traceback" not in errors
