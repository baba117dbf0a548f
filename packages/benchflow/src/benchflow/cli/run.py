"""`bench run`: one rollout."""

from collections.abc import Sequence

from benchflow_contracts import RolloutRecord
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import RunFlags
from benchflow_engine.rollout import RunResult
from benchflow_engine.rollout import run as run_rollout

from . import format as fmt
from .env_file import EnvFile, with_env_files
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json
from .preview import PreviewFlags, PreviewOnly, preview_run
from .rollout_flags import Run, configuration


async def run(
    task: str,
    *,
    options: Run = RunFlags(),
    env_file: EnvFile = (),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    preview: PreviewOnly = PreviewFlags(),
    json: Json = False,
) -> int:
    """Run one rollout of one task and show it as it happens.

    Examples:
        bench run benchmarks/clawsbench/tasks/archive-newsletters --agent oracle
        bench run TASK --agent mistral-vibe --model m --base-url http://127.0.0.1:8000/v1
        bench run TASK --agent oracle --branch ask-user --json
        bench run HARBOR-TASK --sandbox docker --agent oracle
        bench run TASK --agent policy --branch best-of --branch-n 3 --branch-at 1
        bench run TASK --agent policy --branch group --branch-at-call 3 --branch-n 4
        bench run TASK --agent oracle --offline --explain

    Args:
        task: Task directory, of BenchFlow, Harbor or Terminal-Bench; the URL of a git repository
            with one task; or a task of a registered source, as NAME://ADDRESS?split=S&index=N.
        options: Options of the rollout.
        preview: Ways to look at the run before it starts.
    """
    config = with_env_files(configuration(options), env_file)
    if preview.any:
        return await preview_run(task, config, preview, json=json)
    if json:
        result = await run_rollout(task, config=config, jobs_dir=jobs_dir)
        print_json({**result.record.model_dump(mode="json"), "directory": str(result.directory)})
    else:
        from .narrate import narrator

        subscribers = (narrator(),)
        result = await run_rollout(task, config=config, jobs_dir=jobs_dir, subscribers=subscribers)
        print_summary(result)
    return exit_code(result, config)


def print_summary(result: RunResult) -> None:
    """Print a finished rollout: its tree, its reward and its directory."""
    record = result.record
    if record.leaves > 1:
        # A job imports this module, and does not need the tree.
        from .treeview import print_tree

        print_tree(result.tree)
    if record.endpoint_probe is not None:
        note(fmt.endpoint(record.endpoint_probe))
    note(f"reward {fmt.reward(record.reward)}  {fmt.outcome(record)}  {result.directory}")
    if record.error is not None and record.error.hint:
        note(f"hint: {record.error.hint}")


def exit_code(result: RunResult, config: RunConfig) -> int:
    """Return 0 for a rollout with a reward and every required fork, else 1."""
    if report_missing_forks([result.record], config):
        return 1
    return 0 if result.reward is not None else 1


def report_missing_forks(records: Sequence[RolloutRecord], config: RunConfig) -> int:
    """Print the completed rollouts without a required fork; return their number."""
    require = None if config.branch is None else config.branch.require
    if require is None:
        return 0
    ids = [r.rollout_id for r in records if r.status == "completed" and not r.branches]
    if ids:
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        note(f"error: no fork in {', '.join(ids[:3])}{more}: no question or turn to fork at")
        note(f"hint: --branch-require {require} fails a rollout without such a fork")
    return len(ids)
