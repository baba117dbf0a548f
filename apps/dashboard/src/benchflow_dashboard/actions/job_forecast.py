"""What an action on a job would do: its fidelity, why not a better one, and its cost."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from benchflow_contracts import BenchFlowError, BranchRecord
from benchflow_jobs import JobView
from benchflow_jobs.planning import load_plan
from benchflow_store import checkpoint_paths

from .estimate import RolloutEstimate
from .job_actions import JobAction, JobPlace

_LOOKED_AT: Final = 200
"""The rollouts of a job whose saved checkpoints are counted."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a page says before the click."""

    effect: str
    fidelity: str
    """What continues later, and as what: `live`, `files only`, `from the start`."""
    why: str
    """Why no better fidelity is possible; empty for the best one."""
    cost: str
    time: str


@dataclass(frozen=True, slots=True)
class ForecastFacts:
    """What the forecasts of one job rest on."""

    place: JobPlace
    state: JobView | None
    estimate: RolloutEstimate
    workers: str = ""
    """The backend of a distributed job; empty if rollouts run in the job's process."""
    keep: str = "none"
    """The checkpoints that rollouts of the job save."""
    slots: int | None = None
    """Rollouts at once, as planned."""
    last_fork: BranchRecord | None = None
    """The last fork in the newest rollout of the job that forked: what its sandboxes can do."""

    @property
    def running(self) -> int:
        """The number of rollouts that run."""
        return 0 if self.state is None else len(self.state.running)

    @property
    def left(self) -> int:
        """The number of slots that a resume would run."""
        return 0 if self.state is None else self.state.pending

    @classmethod
    def read(
        cls,
        place: JobPlace,
        state: JobView | None,
        estimate: RolloutEstimate,
        last_fork: BranchRecord | None = None,
    ) -> "ForecastFacts":
        """Read the plan of a job. An unreadable plan leaves its facts unknown."""
        try:
            plan = load_plan(place.directory)
        except BenchFlowError:
            plan = None
        if plan is None:
            return cls(place, state, estimate, last_fork=last_fork)
        backend = plan.config.backend
        keeps = sorted({variant.run.keep.which for variant in plan.variants})
        return cls(
            place,
            state,
            estimate,
            workers="" if backend.is_local else backend.name,
            keep=" or ".join(keeps),
            slots=plan.config.concurrency.slots,
            last_fork=last_fork,
        )


def forecast(action: JobAction, facts: ForecastFacts) -> Forecast:
    """Return what an action would do."""
    match action:
        case "pause":
            return _pause(facts)
        case "pause-now":
            return _pause_now(facts)
        case "pause-keep":
            return _pause_keep(facts)
        case "resume":
            return _resume(facts)
        case "resize":
            return _resize(facts)
        case "cancel":
            return _cancel(facts)


def _pause(facts: ForecastFacts) -> Forecast:
    return Forecast(
        effect=f"No further rollout starts. {_rollouts(facts.running)} that run continue.",
        fidelity="live: the rollouts that run are not touched",
        why="",
        cost=f"until they end: {facts.estimate.cost_of(facts.running)} at most",
        time=facts.estimate.time_of(facts.running),
    )


def _pause_now(facts: ForecastFacts) -> Forecast:
    effect = f"No further rollout starts. The sandboxes of {_rollouts(facts.running)} freeze."
    if facts.workers:
        return Forecast(
            effect=effect,
            fidelity="none: the rollouts that run continue",
            why=f"the workers of backend {facts.workers!r} cannot hold a rollout",
            cost=f"until they end: {facts.estimate.cost_of(facts.running)} at most",
            time=facts.estimate.time_of(facts.running),
        )
    return Forecast(
        effect=effect,
        fidelity="live: processes stay in memory, and model calls wait",
        why="a rollout whose sandbox cannot be frozen continues; the reply names the reason",
        cost="nothing until the resume; the sandboxes keep their memory",
        time="the order is answered within 20 s",
    )


def _pause_keep(facts: ForecastFacts) -> Forecast:
    effect = f"{_rollouts(facts.running)} that run are saved at their next state, and end."
    if facts.workers:
        return Forecast(
            effect=effect,
            fidelity="none: the rollouts that run continue",
            why=f"the workers of backend {facts.workers!r} cannot save a rollout on order",
            cost=f"until they end: {facts.estimate.cost_of(facts.running)} at most",
            time=facts.estimate.time_of(facts.running),
        )
    return Forecast(
        effect=effect,
        fidelity="live where the sandbox and the agent can; else files and the conversation",
        why=f"a rollout within a turn continues until its next question or the end of the turn; "
        f"a rollout that has forked cannot be saved; {_shown_by(facts.last_fork)}",
        cost=f"until they are saved: less than {facts.estimate.cost_of(facts.running)}",
        time=f"less than {facts.estimate.time_of(facts.running)}",
    )


def _resume(facts: ForecastFacts) -> Forecast:
    at_once = facts.slots or 1
    costs = {
        "cost": facts.estimate.cost_of(facts.left),
        "time": facts.estimate.time_of(facts.left, at_once),
    }
    if facts.place.process is not None:
        pause = None if facts.state is None else facts.state.pause
        is_frozen = pause is not None and bool(pause.get("now"))
        is_saved = pause is not None and bool(pause.get("keep"))
        return Forecast(
            effect=f"The pause ends. {facts.left} slots wait or run.",
            fidelity="live: frozen sandboxes continue where they were"
            if is_frozen
            else "live: the rollouts that run were not touched",
            why="rollouts that were saved continue from their checkpoints" if is_saved else "",
            **costs,
        )
    saved, looked = _saved_rollouts(facts.place.directory)
    return Forecast(
        effect=f"A new process of this dashboard's user runs the {facts.left} slots that are left.",
        fidelity="from checkpoints where a rollout has one, else from the start"
        if saved
        else "from the start",
        why=f"{saved} of {looked} rollouts of the job have a checkpoint (keep: {facts.keep}); "
        "the processes of rollouts that were cut short are gone",
        **costs,
    )


def _resize(facts: ForecastFacts) -> Forecast:
    planned = "unknown" if facts.slots is None else str(facts.slots)
    return Forecast(
        effect=f"Planned are {planned} rollouts at once. What runs over a lower limit continues.",
        fidelity="live: the rollouts that run are not touched",
        why="",
        cost=f"the same in all, for {facts.left} slots: {facts.estimate.cost_of(facts.left)}",
        time=f"one rollout: {facts.estimate.time_of(1)}",
    )


def _cancel(facts: ForecastFacts) -> Forecast:
    has_checkpoints = facts.keep not in {"none", ""}
    return Forecast(
        effect=f"{_rollouts(facts.running)} that run end now, without a score. Then the job ends.",
        fidelity=f"a later resume continues from checkpoints (keep: {facts.keep})"
        if has_checkpoints
        else "none: a later resume runs these rollouts from the start",
        why="the processes of the sandboxes end; `Pause and save` keeps more",
        cost=f"lost at most: {facts.estimate.cost_of(facts.running)}",
        time=f"lost at most: {facts.estimate.time_of(facts.running)}",
    )


def _shown_by(fork: BranchRecord | None) -> str:
    """Return what the last fork of the job says about its sandboxes."""
    if fork is None:
        return "no fork of this job shows yet what its sandboxes can do"
    reason = f": {fork.reason}" if fork.reason else ""
    return f"the last fork of this job was {fork.fidelity}{reason}"


def _rollouts(count: int) -> str:
    return "1 rollout" if count == 1 else f"{count} rollouts"


def _saved_rollouts(job: Path) -> tuple[int, int]:
    """Return how many rollouts have a saved checkpoint, and how many were looked at."""
    homes = [path.parent for path in islice(sorted(job.glob("*/events.jsonl")), _LOOKED_AT)]
    return sum(any(True for _ in checkpoint_paths(home)) for home in homes), len(homes)
