"""What a whole process of `bench` loads: what a rollout does not use is not imported."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_engine.scaffold import write_task

LOADED = """
import sys
from benchflow.cli.entry import run

code = run(sys.argv[1:])
print("loaded", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""
NOBODY = {"acp", "aiohttp", "httpx", "jinja2", "mkdocs", "pathspec", "rich", "yaml"}
"""Of agents that speak, of recorded model calls, of judges, of terminals, of tasks with a
`.gitignore` and of compose files."""
OTHERS = {
    "benchflow_adapters_harbor.lowering.composed",
    "benchflow_agent_acp.declaration",
    "benchflow_agent_acp.install",
    "benchflow_kernel.users.chat",
    "benchflow_reward.declared",
    "benchflow_reward.functions",
    "benchflow_sandbox_core.recipe.dockerfile",
    "benchflow_sandbox_local.build.build",
    "benchflow_sandbox_local.gvisor.runtime",
    "benchflow_sandbox_local.capability_probe",
}
"""Of compose files, of agents that are declared, of users whom a model plays, of declared
rewards, of builds, of another engine and of `bench doctor`."""
DOCKER = {"benchflow_sandbox_docker", "docker", "requests", "urllib3"}


def loaded_by_a_job(cwd: Path, sandbox: str) -> set[str]:
    """Run the tasks below `cwd` by the oracle; return the modules that this imported."""
    command = ["eval", "create", "--tasks-dir", "tasks", "--sandbox", sandbox]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_an_oracle_in_a_local_sandbox_loads_no_engine_and_no_protocol(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    loaded = loaded_by_a_job(tmp_path, "local")
    assert "benchflow_sandbox_local" in loaded
    assert loaded & (NOBODY | OTHERS | DOCKER) == set()


@pytest.mark.timeout(300)
def test_an_oracle_of_harbors_on_docker_loads_nothing_for_others(
    image: str, tmp_path: Path
) -> None:
    for name, text in {
        "task.toml": f'[environment]\ndocker_image = "{image}"\n',
        "instruction.md": "Do nothing.\n",
        "environment/README": "The image is in task.toml.\n",
        "solution/solve.sh": "#!/bin/sh\ntrue\n",
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    }.items():
        path = tmp_path / "tasks" / "nothing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    loaded = loaded_by_a_job(tmp_path, "docker")
    assert "benchflow_sandbox_docker" in loaded
    assert loaded & (NOBODY | OTHERS | {"benchflow_sandbox_local"}) == set()
