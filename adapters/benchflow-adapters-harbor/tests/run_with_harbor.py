"""Run by Harbor's Python: let Harbor itself run the tasks AGENT/TASK below a directory.

    run_with_harbor.py TASKS TRIALS

AGENT is one of Harbor's, or `script`, which runs its instruction as a shell script. Prints
the path of each task's `result.json`.
"""

import asyncio
import json
import shlex
import sys
import warnings
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

AT_ONCE = 2


class Script(BaseAgent):
    """Does to the letter what it is told. Fails as Harbor's installed agents do."""

    @staticmethod
    def name():
        return "script"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        done = await environment.exec(f"sh -c {shlex.quote(instruction)}")
        if done.return_code:
            raise NonZeroAgentExitCodeError(f"exit code {done.return_code}: {done.stdout}")


async def run(task, trials):
    name = task.parent.name
    chosen = {"import_path": f"{__name__}:Script"} if name == "script" else {"name": name}
    config = TrialConfig(
        task=TaskConfig(path=task), trials_dir=trials, agent=AgentConfig.model_validate(chosen)
    )
    trial = await Trial.create(config)
    await trial.run()
    return trials / config.trial_name / "result.json"


async def run_all(tasks, trials):
    turn = asyncio.Semaphore(AT_ONCE)
    found = {}

    async def run_one(task):
        async with turn:
            found[task.name] = str(await run(task, trials))

    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(run_one(task))
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Harbor tells what it does on standard output.
    sys.stdout, told = sys.stderr, sys.stdout
    tasks, trials = map(Path, sys.argv[1:])
    json.dump(asyncio.run(run_all(sorted(tasks.glob("*/*")), trials)), told)
