"""Run by Harbor's Python: print what Harbor itself gives for the tasks below a directory.

    run_with_harbor.py TASKS TRIALS AGENTS.json

AGENTS.json names an agent for each task: one of Harbor's, or `script`, which runs its
instruction as a shell script. The outcomes are read from each trial's `result.json`.
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


def outcome(result):
    """Return what a trial or a step ended with."""
    verdict, error = result["verifier_result"], result["exception_info"]
    return {
        "rewards": verdict and verdict["rewards"],
        "exception": error and error["exception_type"],
        "message": error and error["exception_message"],
    }


async def run(task, trials, agent):
    chosen = {"import_path": f"{__name__}:Script"} if agent == "script" else {"name": agent}
    config = TrialConfig(
        task=TaskConfig(path=task), trials_dir=trials, agent=AgentConfig.model_validate(chosen)
    )
    trial = await Trial.create(config)
    await trial.run()
    return trials / config.trial_name / "result.json"


async def run_all(tasks, trials, agents):
    """Return the path of each task's result."""
    turn = asyncio.Semaphore(AT_ONCE)
    found = {}

    async def run_one(name, agent):
        async with turn:
            found[name] = await run(tasks / name, trials, agent)

    async with asyncio.TaskGroup() as group:
        for name, agent in agents.items():
            group.create_task(run_one(name, agent))
    return found


def told_by(path):
    result = json.loads(path.read_text())
    return outcome(result) | {"steps": [outcome(step) for step in result["step_results"] or []]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Harbor tells what it does on standard output.
    sys.stdout, told = sys.stderr, sys.stdout
    tasks, trials, agents = map(Path, sys.argv[1:])
    results = asyncio.run(run_all(tasks, trials, json.loads(agents.read_text())))
    json.dump({name: told_by(path) for name, path in results.items()}, told)
