"""Old Terminal-Bench tasks: `task.yaml`, `run-tests.sh` and a service that is not `main`."""

from pathlib import Path
from typing import Literal

from benchflow_contracts import TaskError

from .canary import without_canary
from .client_service import build_context, dockerfile_name
from .compose import Compose, read_compose
from .config import Artifact, HarborConfig, NetworkPolicy, Record, Seconds, unknown_keys
from .digest import task_digest
from .files import check_tree
from .task import HarborStep, HarborTask, TerminalBench, VerifierPlan
from .toml_text import validate


class TerminalBenchConfig(Record):
    """`task.yaml` of terminal-bench 0.2. Its durations are in seconds."""

    instruction: str
    author_name: str = "unknown"
    author_email: str = "unknown"
    difficulty: Literal["easy", "medium", "hard", "unknown"] = "unknown"
    category: str = "software_engineering"
    tags: tuple[str, ...] = ()
    estimated_duration_sec: float | None = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None
    max_agent_timeout_sec: Seconds = 360
    max_test_timeout_sec: Seconds = 60
    parser_name: str = "pytest"
    run_tests_in_same_shell: bool = False
    disable_asciinema: bool = False

    def as_harbor(self) -> HarborConfig:
        """Return the `task.toml` that `harbor task migrate` would write."""
        fields = {"author_name", "author_email", "difficulty", "category", "tags"}
        fields |= {"estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min"}
        return HarborConfig.model_validate(
            {
                "metadata": self.model_dump(mode="json", include=fields, exclude_none=True),
                "verifier": {"timeout_sec": self.max_test_timeout_sec},
                "agent": {"timeout_sec": self.max_agent_timeout_sec},
            }
        )


def load_terminal_bench(root: Path) -> HarborTask:
    """Read and check the Terminal-Bench task directory `root`, an absolute path.

    Raises:
        TaskError: The task is malformed. The error has `file:key` or `file:line` and a remedy.
    """
    # Import the parser only for a task that has YAML.
    from .yaml_text import read_yaml  # noqa: PLC0415

    file = root / "task.yaml"
    raw = read_yaml(root, file)
    old = validate(TerminalBenchConfig, raw, file)
    compose_file = root / "docker-compose.yaml"
    compose = read_compose(root, compose_file)
    for name in ("tests", "run-tests.sh", "solution.sh"):
        check_tree(root, root / name)
    script = root / "run-tests.sh"
    if not script.is_file():
        raise TaskError("the file is missing", where=str(script), hint="add run-tests.sh")
    config = old.as_harbor()
    notes = [f"unknown key {key[:80]!r}" for key in unknown_keys(old, raw)]
    if (root / "solution.yaml").exists():
        notes.append("solution.yaml has keystrokes, which the oracle cannot replay")
    task = HarborTask(
        name=root.name,
        path=root,
        format="terminal-bench",
        config=config,
        steps=(_step(root, old, config, script),),
        context=root,
        dockerfile=False,
        compose=_with_services(compose, compose_file),
        upload_context=False,
        terminal_bench=TerminalBench.model_validate(old.model_dump()),
        digest=task_digest(root, everything=True),
        notes=tuple(notes),
    )
    built = root / build_context(task) / dockerfile_name(task)
    return task.model_copy(update={"dockerfile": built.is_file()})


def _with_services(compose: Compose, file: Path) -> Compose:
    if not compose.services:
        raise TaskError("there is no service", where=f"{file}:services", hint="add 'client'")
    return compose


def _step(root: Path, old: TerminalBenchConfig, config: HarborConfig, script: Path) -> HarborStep:
    tests = root / "tests"
    solution = root / "solution.sh"
    ends = "" if old.instruction.endswith("\n") else "\n"
    verifier = VerifierPlan(
        mode="shared",
        environment=None,
        directory=None,
        tests_in_image=False,
        tests=(tests,) if tests.is_dir() else (),
        script=script,
        timeout_sec=old.max_test_timeout_sec,
        env={},
        user=None,
        network=NetworkPolicy(),
    )
    return HarborStep(
        name=None,
        instruction=without_canary(old.instruction + ends),
        trajectory=None,
        timeout_sec=config.agent.timeout_sec,
        user=None,
        network=NetworkPolicy(),
        verifier=verifier,
        artifacts=(Artifact(source="/logs/artifacts"),),
        collect=(),
        healthcheck=None,
        min_reward=None,
        solution=solution if solution.is_file() else None,
        workdir=None,
    )
