"""`bench demo`: the whole product in one minute."""

from typing import Annotated

import benchflow_clawsbench as clawsbench
from benchflow_engine.branching import BranchKind
from benchflow_engine.options import RunOptions
from benchflow_engine.rollout import run as run_rollout
from cyclopts import Parameter

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .narrate import narrator
from .output import note, print_json
from .run import exit_code
from .treeview import print_tree

TASK = "book-the-review-room"


class DemoOptions(RunOptions):
    """RunOptions that fork at a question unless told otherwise."""

    branch: BranchKind | None = "ask-user"


async def demo(
    *,
    options: Annotated[DemoOptions, Parameter(name="*")] = DemoOptions(),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Watch an agent act over ACP in a stateful world, fork at its question, and be graded.

    The agent is the task's own scripted solution: a real ACP process in the sandbox,
    which needs no model. The rollout forks at its question, one child per option;
    every child is graded in a box of its own, and the tree is exported for a trainer.

    Examples:
        bench demo
        bench demo --agent mistral-vibe --model M --base-url http://127.0.0.1:8000/v1
    """
    task = clawsbench.root() / "tasks" / TASK
    if not json:
        note(f"task {task.name}, agent {options.agent_name}, fork at each question\n")
    subscribers = () if json else (narrator(),)
    result = await run_rollout(task, options=options, jobs_dir=jobs_dir, subscribers=subscribers)
    home = result.directory
    if json:
        print_json({**result.record.model_dump(mode="json"), "directory": str(home)})
        return exit_code(result, options)
    note("")
    print_tree(result.tree)
    note(f"V(root) = {fmt.value(result.record.value)}")
    if home is not None:
        note(f"trainer records: {home / 'trainer' / 'verifiers.jsonl'}")
        note(f"next: bench rollout show {home.name}")
    return exit_code(result, options)
