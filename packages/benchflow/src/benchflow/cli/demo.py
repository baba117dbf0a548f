"""`bench demo`: one rollout that shows the whole product in one minute."""

import shlex
from importlib.util import find_spec
from pathlib import Path

import benchflow_clawsbench as clawsbench
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import RunFlags
from benchflow_engine.rollout import RunResult
from benchflow_engine.rollout import run as run_rollout

from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import print_json
from .rollout_flags import Run, configuration
from .run import exit_code
from .story import Story

TASK = "book-the-review-room"


async def demo(
    *,
    options: Run = RunFlags(),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Watch one rollout: an agent acts, asks, is forked at its question and graded.

    The agent is the task's own scripted solution: a real ACP process in the sandbox
    that needs no model. The rollout forks at the agent's question, with one child per
    option. Each child is graded in its own sandbox, and the tree is exported for a trainer.

    Examples:
        bench demo
        bench demo --agent mistral-vibe --model M --base-url http://127.0.0.1:8000/v1
    """
    task = clawsbench.root() / "tasks" / TASK
    config = configuration(options, {"branch": {"kind": "ask-user"}})
    story = None if json else _begin(config)
    subscribers = () if story is None else (story,)
    result = await run_rollout(task, config=config, jobs_dir=jobs_dir, subscribers=subscribers)
    if story is None:
        print_json({**result.record.model_dump(mode="json"), "directory": str(result.directory)})
    else:
        _end(story, result, jobs_dir)
    return exit_code(result, config)


def _begin(config: RunConfig) -> Story:
    story = Story()
    story.tell("Task", f"{TASK}: mail, a calendar, and a question to the user")
    scripted = " (the task's own script)" if config.agent.label == "oracle" else ""
    story.tell("Agent", f"{config.agent.label}{scripted}, over ACP in a real sandbox")
    return story


def _end(story: Story, result: RunResult, jobs_dir: Path) -> None:
    story.end(result.tree)
    error = result.record.error
    if error is not None:
        story.tell("Failed", f"{error.boundary}: {error.message}", style="red")
        story.tell("Hint", error.hint or "read the record")
    directory = result.directory
    if directory is not None:
        story.tell("Record", str(directory), fit="copy")
        story.tell("Trainer", str(directory / "trainer" / "verifiers.jsonl"), fit="copy")
        words = ["bench", "rollout", "tree", directory.name]
        where = [] if jobs_dir == DEFAULT_JOBS else ["--jobs-dir", str(jobs_dir)]
        story.tell("Next", shlex.join([*words, *where]), style="bold", fit="copy")
        is_installed = find_spec("benchflow_dashboard") is not None
        install = "" if is_installed else "pip install 'benchflow[dashboard]' && "
        browse = shlex.join(["bench", "dashboard", *where])
        story.tell("Browser", f"{install}{browse}", style="bold", fit="copy")
