"""Loads job directories with Harbor's own models; prints what it read as JSON.

Run by Harbor's Python, so it imports nothing of ours. It fails when a file is no document of
its model, the job's statistics are not what Harbor itself makes of the trials, or the API of
Harbor's viewer does not show what is there.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trajectories import Trajectory
from harbor.models.trial.artifact_manifest import ArtifactManifest
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import TrialResult
from harbor.utils.traces_utils import collect_conversations_from_trial, load_run_metadata
from harbor.utils.trajectory_validator import TrajectoryValidator
from harbor.viewer.server import create_app


def read_trial(home: Path) -> tuple[TrialResult, dict[str, Any]]:
    paths = TrialPaths(trial_dir=home)
    config = TrialConfig.model_validate_json(paths.config_path.read_text())
    result = TrialResult.model_validate_json(paths.result_path.read_text())
    assert result.config == config
    assert result.trial_name == config.trial_name == home.name
    rewards = result.verifier_result and result.verifier_result.rewards
    if rewards is not None:
        assert json.loads(paths.reward_json_path.read_text()) == rewards
    steps = []
    document = paths.agent_dir / "trajectory.json"
    if document.exists():
        validator = TrajectoryValidator()
        assert validator.validate(document), validator.get_errors()
        read = Trajectory.model_validate_json(document.read_text())
        assert read.schema_version == "ATIF-v1.8"
        assert read.final_metrics is not None
        own = [step for step in read.steps if not step.is_copied_context]
        assert read.final_metrics.total_steps == len(own)
        steps = [step.model_dump(mode="json", exclude_none=True) for step in read.steps]
        # Harbor's own rows for training: one per step of the agent that is no copy.
        rows = collect_conversations_from_trial(home, load_run_metadata(home))
        assert len(rows) == sum(step.source == "agent" for step in own)
    for step in result.step_results or []:
        told = paths.step_verifier_dir(step.step_name) / "reward.json"
        assert told.exists() == (step.verifier_result is not None)
        if step.verifier_result is not None:
            assert json.loads(told.read_text()) == step.verifier_result.rewards
        document = paths.step_agent_dir(step.step_name) / "trajectory.json"
        if document.exists():
            Trajectory.model_validate_json(document.read_text())
    failed, spent = result.exception_info, result.agent_result
    assert spent is not None
    return result, {
        "rewards": rewards,
        "exception": failed and failed.exception_type,
        "mode": result.verifier_environment_mode,
        "steps": steps,
        "stdout": paths.test_stdout_path.exists(),
        "tokens": spent.rollout_details,
        "artifacts": read_artifacts(home),
        "of_steps": {
            step.step_name: step.verifier_result and step.verifier_result.rewards
            for step in result.step_results or []
        },
    }


def read_artifacts(home: Path) -> dict[str, str]:
    """Return the status of each artifact; those that are said to be there are there."""
    file = home / "artifacts" / "manifest.json"
    found = json.loads(file.read_text()) if file.exists() else []
    entries = ArtifactManifest(entries=found).entries
    assert all((home / e.destination).exists() for e in entries if e.status in {"ok", "empty"})
    return {entry.source: entry.status for entry in entries}


def see(client: TestClient, job: str, result: TrialResult) -> None:
    """Ask the viewer for all that it shows of a trial and of each of its steps."""
    where = f"/api/jobs/{job}/trials/{result.trial_name}"
    shown = client.get(where)
    assert shown.status_code == 200, shown.text
    assert TrialResult.model_validate(shown.json()) == result
    parts = [(None, Path(job, result.trial_name), result.verifier_result)]
    for step in result.step_results or []:
        home = Path(job, result.trial_name, "steps", step.step_name)
        parts.append((step.step_name, home, step.verifier_result))
    for name, home, verdict in parts:
        params = {} if name is None else {"step": name}
        told = {}
        for what in ("trajectory", "verifier-output", "artifacts", "agent-logs"):
            answer = client.get(f"{where}/{what}", params=params)
            assert answer.status_code == 200, (what, answer.text)
            told[what] = answer.json()
        assert bool(told["trajectory"]) == (home / "agent" / "trajectory.json").exists()
        output = home / "verifier" / "test-stdout.txt"
        assert told["verifier-output"]["stdout"] == (
            output.read_text() if output.exists() else None
        )
        assert told["verifier-output"]["reward"] == (verdict and verdict.rewards)
        listed = {entry["source"]: entry["status"] for entry in told["artifacts"]["manifest"] or []}
        assert listed == read_artifacts(home)


def read_job(home: Path) -> dict[str, Any]:
    config = JobConfig.model_validate_json((home / "config.json").read_text())
    job = JobResult.model_validate_json((home / "result.json").read_text())
    assert config.job_name == home.name
    trials = {each.name: read_trial(each) for each in sorted(home.iterdir()) if each.is_dir()}
    with TestClient(create_app(Path.cwd())) as client:
        for result, _ in trials.values():
            see(client, home.name, result)
    counted = JobStats.from_trial_results([result for result, _ in trials.values()])
    told, wanted = job.stats.model_dump(), counted.model_dump()
    means = {key: entry.pop("metrics") for key, entry in told["evals"].items()}
    for entry in wanted["evals"].values():
        entry.pop("metrics")
    for entry in (*told["evals"].values(), *wanted["evals"].values()):
        # A job lists its trials in the order in which they were planned.
        for kinds in (*entry["reward_stats"].values(), entry["exception_stats"]):
            kinds.update({key: sorted(names) for key, names in kinds.items()})
    assert told == wanted, (told, wanted)
    assert job.n_total_trials == len(trials)
    return {
        "metrics": means,
        "spent": [told["n_input_tokens"], told["n_output_tokens"]],
        "trials": {name: seen for name, (_, seen) in trials.items()},
    }


def main() -> None:
    """Read every job that is named."""
    print(json.dumps({name: read_job(Path(name)) for name in sys.argv[1:]}))


main()
