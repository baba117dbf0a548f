"""An operator gives tasks more time, or less."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_contracts import Task
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_kernel import RolloutConfig
from benchflow_kernel.resolve.effective_task import HostVariables, effective_task
from benchflow_kernel.resolve.settings import Origins
from benchflow_testing.fakes import FakeSandboxProvider

TOML = """
[agent]
timeout_sec = 10
[verifier]
timeout_sec = 20
environment_mode = "separate"
[environment]
build_timeout_sec = 30
[environment.healthcheck]
command = "true"
timeout_sec = 5
"""
FILES = {
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian:12\n",
    "tests/test.sh": "true\n",
    "solution/solve.sh": "true\n",
}


def scaled(task: Task, factor: float) -> Task:
    config = RolloutConfig(timeout_multiplier=factor)
    return effective_task(task, config, HostVariables((), {}), Origins())


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def read(toml: str = TOML, **more: str) -> Task:
        for name, text in {**FILES, **more, "task.toml": toml}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return HarborAdapter().load_task(tmp_path)

    return read


def test_agent_tests_and_image_are_given_times_what_the_task_says(load: Any) -> None:
    task = load()
    longer = scaled(task, 3)
    assert longer.config.agent.timeout_sec == 30
    assert longer.config.verifier.timeout_sec == 60
    assert longer.config.environment.image_timeout_sec == 90
    assert longer.parts.recipe is not None
    assert longer.parts.recipe.timeout_sec == 90
    assert longer.config.environment.healthcheck == task.config.environment.healthcheck
    assert longer.digest == task.digest


def test_so_is_each_step(load: Any) -> None:
    toml = '[[steps]]\nname = "one"\nagent = { timeout_sec = 4 }\nverifier = { timeout_sec = 6 }\n'
    [step] = scaled(load(toml, **{"steps/one/instruction.md": "Do."}), 0.5).steps
    assert (step.agent.timeout_sec, step.verifier.timeout_sec) == (2, 3)


def test_a_rollout_has_the_time_that_its_option_gives(load: Any, tmp_path: Path) -> None:
    class Noting(FakeSandboxProvider):
        async def create(self, spec: Any, **options: Any) -> Any:
            waits.append(spec.recipe.timeout_sec)
            return await super().create(spec, **options)

    waits: list[float] = []
    options = run_config(agent="nop", timeout_multiplier=2)
    asyncio.run(run_in(Noting(), load(), options, directory=tmp_path / "job"))
    assert waits[0] == 60
