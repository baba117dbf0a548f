"""What a tool session costs: our processor time for a call, and its time over a bare `exec`.

The call without cost names an unknown tool, so the time is that of the session, the kernel and the
record. `python tool_sessions.py [--calls 500]`.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from benchflow_contracts import SandboxSpec
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.scaffold import write_task
from benchflow_tool_sessions import open_session
from report import emit

CPU_BOUND_MS = 3.0
WALL_BOUND_MS = 10.0


async def measure(home: Path, calls: int) -> None:
    """Measure and print."""
    write_task(home / "task")
    config = RunConfig()
    async with open_provider(config) as provider:
        spent: list[float] = []
        async with open_session(home / "task", config, provider=provider, jobs_dir=home) as session:
            for _ in range(calls):
                began = time.process_time()
                await session.call("nothing", {"text": "x" * 100})
                spent.append((time.process_time() - began) * 1000)
        emit("tool_sessions.cpu_ms_per_call", spent, limit=CPU_BOUND_MS)
        bare_sandbox = await provider.create(SandboxSpec())
        async with open_session(home / "task", config, provider=provider, jobs_dir=home) as session:
            bare: list[float] = []
            through: list[float] = []
            # Alternate, so that both meet the same load of the machine.
            for _ in range(calls // 2):
                began = time.perf_counter()
                await bare_sandbox.exec(["true"])
                bare.append((time.perf_counter() - began) * 1000)
                began = time.perf_counter()
                await session.call("bash", {"command": "true"})
                through.append((time.perf_counter() - began) * 1000)
        await bare_sandbox.teardown()
    over = median(through) - median(bare)
    emit("tool_sessions.bash_ms", through, over_bare_exec=round(over, 3), limit=WALL_BOUND_MS)
    emit("tool_sessions.bare_exec_ms", bare)


def main() -> None:
    """Measure in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(measure(Path(home), options.calls))


main()
