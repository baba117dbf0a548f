"""What a world of verifiers costs: processor time of BenchFlow for each tool call of an agent.

The environment does nothing, and runs in the process of the operator's Python. The measured time
is that of this process: the session with the world and the client of the host. A second line has
the time of the host, which is verifiers' own loop and our exchange.

`python verifiers_world.py [--calls 2000] [--env busy_till]`. Without `$BENCHFLOW_VERIFIERS_PYTHON`,
it installs verifiers 0.3.1 with uv, once.
"""

import argparse
import asyncio
import os
import resource
import sys
import time
from pathlib import Path

from benchflow_adapters_verifiers.host_process import PYTHON_VARIABLE, close_hosts
from benchflow_adapters_verifiers.world import VerifiersClient, VerifiersTasks
from benchflow_env_outside import WorldLimits, WorldSession
from report import emit

SUPPORT = Path(__file__).parents[2] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))
from judge_package import install_once  # noqa: E402

BOUND_MS = 3.0
EPISODE = 100


async def measure(ident: str, tool: str, calls: int) -> list[float]:
    """Return the CPU milliseconds of each of `calls` tool calls, episode by episode."""
    [task] = await asyncio.to_thread(VerifiersTasks().tasks, ident, None, start=0, limit=1)
    spent: list[float] = []
    while len(spent) < calls:
        session = WorldSession(
            "verifiers", VerifiersClient(ident, {}), task.data, 0, "replay", WorldLimits()
        )
        await session.open()
        for _ in range(EPISODE):
            began = time.process_time()
            answer = await session.call(tool, {"amount": 1})
            spent.append((time.process_time() - began) * 1000)
            assert not answer.failed
        await session.aclose()
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--env", default="busy_till")
    parser.add_argument("--tool", default="pay_in")
    options = parser.parse_args()
    if PYTHON_VARIABLE not in os.environ:
        os.environ[PYTHON_VARIABLE] = str(install_once("verifiers==0.3.1"))
    os.environ["PYTHONPATH"] = (
        f"{SUPPORT / 'verifiers_tasksets'}:{os.environ.get('PYTHONPATH', '')}"
    )
    try:
        spent = asyncio.run(measure(options.env, options.tool, options.calls))
    finally:
        close_hosts()
    emit("verifiers_world.cpu_ms_per_call", spent, limit=BOUND_MS)
    host = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = (host.ru_utime + host.ru_stime) * 1000
    emit("verifiers_world.host_cpu_ms_with_start", [total])


main()
