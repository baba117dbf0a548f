"""Runs the benchmarks one after the other, in a fixed order.

Left out, and why:

- `agents_fork.py` and `question_to_child.py` install real agents, and take minutes.
- `peer_*.py` measure another project, and are run by its benchmarks.
- `call_fork.py`, `dashboard_beside_run.py`, `dashboard_tree.py`, `monitor_client.py`,
  `monitor_ingest.py` and `serve_process.py` take more than a minute. Run them alone.
- `state_backends.py` and `twin_warmth.py`: how long they take was not measured on a quiet machine.
- `dashboard_live.py`, `memory.py`, `model_server.py`, `null_job.py`, `report.py` and `worlds.py`
  are parts of others.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from foreign_program import workspace_environment
from judge_package import install_once

# fmt: off
NAMES = (
    "cli.py", "null_engine.py", "local_sandbox.py", "docker_sandbox.py", "queued.py",
    "job_schedule.py", "job_run.py", "local_harbor.py", "harbor.py", "live_fork.py",
    "state_fork.py", "fork_cost.py", "grading.py", "export_samples.py", "prefix_breaks.py",
    "value_law.py", "credit_localisation.py", "credit_estimators.py", "root_baseline.py",
    "gateway.py", "analysis.py", "commit.py", "ray_job.py", "monitor.py", "dashboard.py",
    "serve.py", "ors_chunks.py", "ors_calls.py", "nemo_provider.py", "nemo_step.py",
    "remote_link.py", "clouds.py", "inspect_exec.py", "tool_sessions.py", "record_read.py",
    "verifiers_world.py", "state_fork_rollout.py",
)
# fmt: on

FOREIGN = {
    "gymnasium_step.py": "gymnasium[classic-control,toy-text]==1.4.0",
    "openenv_step.py": "openenv==0.10.0",
}
"""Benchmarks that need a foreign package, which is fetched by its name."""


def main() -> None:
    """Stop at the first benchmark that fails."""
    home = Path(__file__).parent
    for name in NAMES:
        subprocess.run([sys.executable, home / name], check=True)
    with tempfile.TemporaryDirectory() as directory:
        environment = workspace_environment(Path(directory))
        for name, package in FOREIGN.items():
            subprocess.run([install_once(package), home / name], env=environment, check=True)


if __name__ == "__main__":
    main()
