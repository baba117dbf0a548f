"""Runs the benchmarks one after the other, in a fixed order."""

import subprocess
import sys
from pathlib import Path

# fmt: off
NAMES = (
    "cli.py", "null_engine.py", "local_sandbox.py", "docker_sandbox.py", "queued.py",
    "job_schedule.py", "job_run.py", "local_harbor.py", "harbor.py", "live_fork.py",
    "state_fork.py", "fork_cost.py", "grading.py", "export_samples.py", "prefix_breaks.py",
    "value_law.py", "credit_localisation.py", "credit_estimators.py", "root_baseline.py",
    "gateway.py", "analysis.py", "commit.py", "ray_job.py", "monitor.py", "dashboard.py",
    "serve.py", "ors_chunks.py", "ors_calls.py", "nemo_provider.py", "nemo_step.py",
    "remote_link.py", "inspect_exec.py",
)
# fmt: on


def main() -> None:
    """Stop at the first benchmark that fails."""
    for name in NAMES:
        subprocess.run([sys.executable, Path(__file__).with_name(name)], check=True)


if __name__ == "__main__":
    main()
