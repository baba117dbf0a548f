"""A Harbor or Terminal-Bench task, read and checked, with everything that a run needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from .compose import Compose
from .config import (
    Artifact,
    CollectHook,
    HarborConfig,
    HarborEnvironment,
    Healthcheck,
    NetworkPolicy,
    Record,
)
from .config.phases import VerifierMode

TaskFormat = Literal["harbor", "terminal-bench"]


class VerifierPlan(Record):
    """How one step is graded."""

    mode: VerifierMode
    environment: HarborEnvironment | None
    """The verifier's own container in mode `separate`; `None` in mode `shared`."""
    directory: Path | None
    """The directory that this container is built from."""
    tests_in_image: bool
    """Whether the verifier's image has the tests. Otherwise they are uploaded to `/tests`."""
    tests: tuple[Path, ...]
    """Directories to merge into `/tests`. A later one overwrites an earlier one."""
    script: Path | None
    """The script that runs, below one of `tests`. `None` if the image has it."""
    timeout_sec: float
    env: Mapping[str, str]
    """A value may be `${VAR}` or `${VAR:-default}`, a variable of the host."""
    user: str | int | None
    network: NetworkPolicy


class HarborStep(Record):
    """One prompt and its grading. A task without `[[steps]]` has exactly one."""

    name: str | None
    """`None` in a task without `[[steps]]`."""
    instruction: str
    trajectory: Path | None
    """An ATIF document of the agent's earlier actions. Only the first step may have one."""
    timeout_sec: float | None
    """The agent's time limit. `None` is unlimited."""
    user: str | int | None
    network: NetworkPolicy
    """The agent's network."""
    verifier: VerifierPlan
    artifacts: tuple[Artifact, ...]
    """`/logs/artifacts` of the main container, then the artifacts of the task and the step."""
    collect: tuple[CollectHook, ...]
    healthcheck: Healthcheck | None
    """The step's own healthcheck, in addition to `environment.healthcheck`."""
    min_reward: float | Mapping[str, float] | None
    solution: Path | None
    """The script of the reference solution. Its whole directory is uploaded."""
    workdir: Path | None
    """Files to upload to the working directory before the step; their `setup.sh` then runs."""


class TerminalBench(Record):
    """Fields that only a `task.yaml` has."""

    parser_name: str
    """The parser of the tests' output when there is no reward file."""
    run_tests_in_same_shell: bool
    disable_asciinema: bool


class HarborTask(Record):
    """A task directory, read and checked.

    Paths are absolute and below `path`. Files that are copied into containers have no links
    that leave the task. The build context in `environment` may have such links, because a
    build does not follow them.
    """

    name: str
    """`[task].name`, or the name of the directory."""
    path: Path
    format: TaskFormat
    config: HarborConfig
    steps: tuple[HarborStep, ...]
    context: Path
    """The directory that the image is built from."""
    dockerfile: bool
    """Whether `context` has a `Dockerfile`."""
    compose: Compose | None
    """The services beside the main container, and overrides for the main container."""
    upload_context: bool
    """Whether to upload the files of `context` to the working directory of a prebuilt image."""
    terminal_bench: TerminalBench | None
    is_migrated: bool = False
    """Whether this is an old task that was converted to Harbor's layout and compose file."""
    digest: str
    """`sha256:` and the content hash that Harbor's registry uses."""
    notes: tuple[str, ...]
    """Warnings that do not prevent a run, such as unknown keys."""
