"""`bench rollout resume`: run the rest of a rollout that was cut short."""

from benchflow_contracts import BeganFrom
from benchflow_engine.resume import resume_rollout, was_cut_short
from benchflow_store import StoredRollout, last_attempt, new_rollout_id

from .flags import DEFAULT_JOBS, JobsDir, Json
from .narrate import narrator
from .output import note, print_json
from .rollouts import find_rollout
from .run import print_summary


async def resume(
    rollout: str, *, trust: bool = False, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False
) -> int:
    """Run the rest of a rollout that a crash, a kill or an interrupt cut short.

    The new attempt starts from the last checkpoint that `--keep` saved. If the agent had ended,
    the attempt only grades. Without a checkpoint it starts anew, and says why.

    Examples:
        bench rollout resume book-the-room__1f
        bench rollout resume jobs/book-the-room__1f --json

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        trust: Permission to run a record and a checkpoint that another user wrote.
    """
    directory = find_rollout(rollout, jobs_dir)
    task = StoredRollout(directory).config.task_id
    result = await resume_rollout(
        directory,
        out=last_attempt(directory).parent / new_rollout_id(task),
        subscribers=() if json else (narrator(),),
        trust=trust,
    )
    if json:
        print_json({**result.record.model_dump(mode="json"), "directory": str(result.directory)})
    else:
        note(_beginning(result.record.began_from))
        print_summary(result)
        if result.directory is not None and was_cut_short(result.directory):
            note("hint: resume it again; it then starts from the checkpoint before")
    return int(result.reward is None)


def _beginning(began: BeganFrom) -> str:
    if began.point == "start":
        return f"started anew: {began.reason}" if began.reason else "nothing was left to run"
    prior = "" if began.prior is None else f", after {began.prior.steps} steps"
    skipped = f" (not used: {began.reason})" if began.reason else ""
    work = "graded" if began.point == "grading" else "resumed"
    return f"{work} from checkpoint {began.checkpoint} ({began.fidelity}){prior}{skipped}"
