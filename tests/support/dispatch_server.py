"""A server of `bench serve` for jobs, in a process of its own that a test can kill and stop."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import ray_job
import uvicorn
from benchflow_contracts import Executor
from benchflow_jobs.dispatch_executor import EXECUTOR, open_executor
from benchflow_serve import RolloutService, ServeSettings, create_app
from benchflow_serve.dispatches import DispatchService
from benchflow_serve.slots import SlotPool
from benchflow_testing.fakes import FakeExecutor

TOKEN = "a-token-of-the-tests"
FAKE = "benchflow_testing.fakes:FakeExecutor"
RECORDING = "ray_job:RecordingExecutor"
BROKEN = "tests:broken"


@asynccontextmanager
async def _fake(**options: Any) -> AsyncGenerator[Executor]:
    yield FakeExecutor()


@asynccontextmanager
async def _recording(**options: Any) -> AsyncGenerator[Executor]:
    yield ray_job.RecordingExecutor()


@asynccontextmanager
async def _broken(**options: Any) -> AsyncGenerator[Executor]:
    raise RuntimeError("the host has no engine")
    yield


EXECUTORS = {FAKE: _fake, RECORDING: _recording, BROKEN: _broken, EXECUTOR: open_executor}


class DispatchServer:
    """A server on the loopback. A server that is started again has the same port."""

    def __init__(self, directory: Path, slots: int = 4) -> None:
        self.directory = directory
        self.slots = slots
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        """Start the process, and wait until it listens."""
        command = [sys.executable, __file__, str(self.directory), str(self.slots), str(self.port)]
        environment = {**os.environ, "BENCHFLOW_SERVE_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


def main() -> None:
    """Serve until a signal."""
    directory, slots, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    settings = ServeSettings(directory=directory)
    dispatches = DispatchService(SlotPool(slots), EXECUTORS)
    app = create_app(RolloutService(settings), dispatches=dispatches)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    listener = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical").bind_socket()
    print(listener.getsockname()[1], flush=True)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
