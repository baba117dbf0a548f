"""The exporter `harbor`: a job directory that Harbor's models load and its viewer opens.

Source of the format: harbor 0.24.0. `tests/e2e/test_harbor_export.py` reads the exports with
that package.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import Exported, FinishedRollout, RolloutNode, VerifyResult

from .atif import owners, trajectory
from .job_totals import JobTotals
from .plain import plain, plain_text, write_json
from .step_results import graded_steps
from .trial import (
    agent_config,
    environment_config,
    job_id,
    task_config,
    trial_config,
    trial_result,
)
from .world_files import WorldFiles


class HarborExporter:
    """A Harbor job directory, one trial per leaf, with ATIF trajectories.

    Steps that several leaves share are marked as copied. As in Harbor, a leaf without a score
    is a trial with an exception and without rewards.
    """

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the job; see `Exporter`."""
        totals, job_config = JobTotals(), _JobConfig()
        written = unscored = tampered = 0
        for rollout in rollouts:
            job_config.add(rollout)
            owned = owners(rollout)
            for leaf in rollout.tree.leaves:
                totals.add(_write_trial(directory, job, rollout, leaf, owned))
                written += 1
                unscored += leaf.reward is None
                tampered += leaf.reward is None and _has_reward(leaf.results.get("reward"))
        write_json(directory / "config.json", {"job_name": plain_text(job), **job_config.config()})
        write_json(directory / "result.json", totals.result(job_id(job)))
        return Exported(trajectories=written, unscored=unscored, tampered=tampered)


def _has_reward(verdict: VerifyResult | None) -> bool:
    return verdict is not None and verdict.reward is not None


class _JobConfig:
    """Collect the tasks, agents and sandbox of a job's rollouts."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, Any]] = {}
        self._agents: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._environment: dict[str, Any] = {}

    def add(self, rollout: FinishedRollout) -> None:
        task, agent = task_config(rollout), agent_config(rollout)
        self._tasks.setdefault(task["path"], task)
        self._agents.setdefault((agent["name"], agent["model_name"]), agent)
        self._environment = environment_config(rollout)

    def config(self) -> dict[str, Any]:
        return {
            "tasks": list(self._tasks.values()),
            "agents": list(self._agents.values()),
            "environment": self._environment,
        }


def _write_trial(
    directory: Path,
    job: str,
    rollout: FinishedRollout,
    leaf: RolloutNode,
    owned: Mapping[str, str],
) -> dict[str, Any]:
    result = trial_result(job, rollout, leaf, owned)
    home = directory / result["trial_name"]
    home.mkdir()
    _write_phases(home, trajectory(rollout, leaf, owned), WorldFiles(rollout, leaf))
    _write_verdict(home / "verifier", leaf.results.get("reward"), result["verifier_result"])
    for part, step_result in zip(graded_steps(leaf), result["step_results"] or (), strict=True):
        step, files = home / "steps" / part.name, WorldFiles(rollout, part.end, part.name)
        _write_phases(step, trajectory(rollout, leaf, owned, part), files)
        _write_verdict(step / "verifier", part.verdict, step_result["verifier_result"])
    failed = result["exception_info"]
    if failed is not None:
        text = f"{failed['exception_type']}: {failed['exception_message']}\n"
        (home / "exception.txt").write_text(text, encoding="utf-8")
    write_json(home / "config.json", trial_config(job, rollout, leaf))
    write_json(home / "result.json", result)
    return result


def _write_phases(home: Path, path: Mapping[str, Any] | None, files: WorldFiles) -> None:
    for name in ("agent", "verifier", "artifacts"):
        (home / name).mkdir(parents=True)
    if path is not None:
        write_json(home / "agent" / "trajectory.json", path)
    output = files.test_output()
    if output is not None:
        (home / "verifier" / "test-stdout.txt").write_text(output, encoding="utf-8")
    files.copy_artifacts(home / "artifacts")


def _write_verdict(
    home: Path, verdict: VerifyResult | None, verifier_result: Mapping[str, Any] | None
) -> None:
    if verdict is not None:
        # No field of Harbor has the whole verdict with its integrity report.
        write_json(home / "benchflow-verdict.json", plain(verdict.model_dump()))
    if verifier_result is not None:
        write_json(home / "reward.json", verifier_result["rewards"])
