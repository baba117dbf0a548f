"""What hermetic and twin grading add to a rollout, in milliseconds."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from benchflow_contracts import NodeState, RolloutNode, Sandbox, SandboxSpec, Task, TaskConfig
from benchflow_reward import ScriptVerifier
from benchflow_sandbox_local import LocalProvider
from report import emit

Isolation = Literal["hermetic", "twin", "shared"]

RUNS: dict[Isolation, int] = {"shared": 40, "hermetic": 40, "twin": 5}
LIMITS: dict[Isolation, float] = {"hermetic": 300.0}
SPEC = SandboxSpec()
TEST = """if [ "$(cat /workspace/answer.txt)" = 42 ]; then echo 1; else echo 0; fi \\
  > /logs/verifier/reward.txt
"""


def write_task(path: Path) -> Task:
    """Return a task whose test takes no time of its own to speak of."""
    tests = path / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text(TEST)
    config = TaskConfig(name="grading", artifacts=("/workspace/answer.txt",))
    return Task(id="grading", path=path, instruction="", config=config, digest="")


async def agents_box(provider: LocalProvider) -> Sandbox:
    """Return a box in which an agent has answered."""
    box = await provider.create(SPEC)
    done = await box.exec("echo 42 > answer.txt")
    assert done.ok
    return box


async def graded(provider: LocalProvider, task: Task, isolation: Isolation) -> float:
    """Grade one box and return how long that took, the test's own time taken off."""
    box = await agents_box(provider)
    node = RolloutNode(id="leaf")
    node.state = NodeState(task=task, provider=provider, sandbox=box, grading_spec=SPEC)
    started = time.perf_counter()
    result = await ScriptVerifier(isolation=isolation).score(node)
    took = time.perf_counter() - started
    assert result.reward == 1, result
    await box.teardown()
    return (took - float(result.meta["duration_sec"])) * 1000


async def main() -> int:
    """Print a line per isolation; fail when a limit is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        task = write_task(Path(name))
        provider = LocalProvider()
        try:
            for isolation, runs in RUNS.items():
                await graded(provider, task, isolation)
                samples = [await graded(provider, task, isolation) for _ in range(runs)]
                limit = LIMITS.get(isolation)
                middle = emit(f"grading_{isolation}", samples, limit=limit)
                missed += limit is not None and middle > limit
        finally:
            await provider.aclose()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
