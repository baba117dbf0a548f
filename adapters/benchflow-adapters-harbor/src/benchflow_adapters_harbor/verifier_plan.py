"""Choose the container and the tests that grade a step."""

from collections.abc import Iterator
from pathlib import Path

from benchflow_contracts import TaskError

from .config import HarborConfig, HarborEnvironment, StepConfig
from .config.phases import VerifierMode
from .files import check_tree
from .task import VerifierPlan

BUILD_FILES = ("Dockerfile", "docker-compose.yaml")


def plan_verifier(root: Path, config: HarborConfig, step: StepConfig | None) -> VerifierPlan:
    """Return how to grade `step`, or the task if it has no steps.

    Raises:
        TaskError: There is no test script.
    """
    mode = _mode(config, step)
    own = None if step is None else step.verifier
    phase = own or config.verifier
    environment, directory, bundled = None, None, False
    if mode == "separate":
        environment, directory, bundled = _container(root, config, step)
    box = environment or config.environment
    tests = tuple(_test_directories(root, step))
    policy = (own and own.policy()) or config.verifier.policy() or box.policy()
    return VerifierPlan(
        mode=mode,
        environment=environment,
        directory=directory,
        tests_in_image=bundled,
        tests=tests,
        script=_script(root, tests, box.os, step, required=not bundled),
        # Like Harbor: a step without a limit has 600 s, whatever the task's limit is.
        timeout_sec=phase.timeout_sec,
        env={**config.verifier.env, **(own.env if own else {})},
        user=own.user if own and own.user is not None else config.verifier.user,
        network=policy,
    )


def _mode(config: HarborConfig, step: StepConfig | None) -> VerifierMode:
    own = step.verifier.mode() if step else None
    return own or config.verifier.mode() or "shared"


def _container(
    root: Path, config: HarborConfig, step: StepConfig | None
) -> tuple[HarborEnvironment, Path, bool]:
    levels = [(config.verifier.environment, root / "tests")]
    if step is not None:
        levels.insert(0, (step.verifier.environment, root / "steps" / step.name / "tests"))
    base = next((found for found, _ in levels if found is not None), config.environment)
    for environment, directory in levels:
        image = environment.docker_image if environment is not None else None
        if image or any((directory / name).is_file() for name in BUILD_FILES):
            return base.model_copy(update={"docker_image": image or None}), directory, True
    check_tree(root, root / "environment")
    os = base.os if "os" in base.model_fields_set else config.environment.os
    update = {"docker_image": config.environment.docker_image, "os": os}
    return base.model_copy(update=update), root / "environment", False


def _test_directories(root: Path, step: StepConfig | None) -> Iterator[Path]:
    shared = root / "tests"
    if shared.exists():
        yield shared
    if step is not None and (own := root / "steps" / step.name / "tests").exists():
        yield own


def _script(
    root: Path, tests: tuple[Path, ...], os: str, step: StepConfig | None, *, required: bool
) -> Path | None:
    name = "test.bat" if os == "windows" else "test.sh"
    for directory in reversed(tests):
        if (directory / name).exists():
            return directory / name
    if not required:
        return None
    of_step = f", or steps/{step.name}/tests/{name}," if step else ""
    raise TaskError(
        "there is no test to run",
        where=str(root / "tests" / name),
        hint=f"add tests/{name}{of_step}",
    )
