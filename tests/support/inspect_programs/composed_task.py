"""A task of Inspect whose sandbox has a service `web` beside it: `composed_task.py@composed`."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox

FETCH = """
import urllib.request
print(urllib.request.urlopen("http://web:8000/hostname", timeout=20).read().decode().strip())
"""


@solver
def ask_the_service() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        del generate
        done = await sandbox().exec(["python3", "-c", FETCH])
        state.output.completion = done.stdout.strip() or done.stderr[-500:]
        try:
            sandbox("web")
        except ValueError as error:
            state.metadata["other"] = str(error)
        return state

    return solve


@task
def composed(file: str) -> Task:
    """One sample, whose answer only the service knows."""
    return Task(
        dataset=[Sample(id="one", input="Ask.", target="shop")],
        solver=ask_the_service(),
        scorer=match(),
        sandbox=("benchflow", file),
    )
