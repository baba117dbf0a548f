"""A Harbor or Terminal-Bench task, read and checked: all that running it will need."""

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
    """Where that container is built from."""
    tests_in_image: bool
    """The tests are part of the verifier's image; otherwise they are uploaded to `/tests`."""
    tests: tuple[Path, ...]
    """Directories to merge into `/tests`, later ones over earlier ones."""
    script: Path | None
    """What is run, below one of `tests`; `None` where the image brings it."""
    timeout_sec: float
    env: Mapping[str, str]
    """Values may be `${VAR}` or `${VAR:-default}` of the host."""
    user: str | int | None
    network: NetworkPolicy


class HarborStep(Record):
    """One prompt and its grading. A task without `[[steps]]` has exactly one."""

    name: str | None
    """`None` in a task without `[[steps]]`."""
    instruction: str
    trajectory: Path | None
    """An ATIF document of what the agent did before; only the first step may have one."""
    timeout_sec: float | None
    """The agent's; `None` is unlimited."""
    user: str | int | None
    network: NetworkPolicy
    """What the agent may reach."""
    verifier: VerifierPlan
    artifacts: tuple[Artifact, ...]
    """`/logs/artifacts` of the main container, then what the task and the step declare."""
    collect: tuple[CollectHook, ...]
    healthcheck: Healthcheck | None
    """The step's own, beside `environment.healthcheck`."""
    min_reward: float | Mapping[str, float] | None
    solution: Path | None
    """The reference solution's script; its whole directory is uploaded."""
    workdir: Path | None
    """Uploaded to the working directory before the step; `setup.sh` in it is then run."""


class TerminalBench(Record):
    """What only a `task.yaml` says."""

    parser_name: str
    """How the tests' output is read where there is no reward file."""
    run_tests_in_same_shell: bool
    disable_asciinema: bool


class HarborTask(Record):
    """A task directory, read and checked.

    Paths are absolute and below `path`. What is copied into containers was checked for
    links that leave the task; the build context in `environment` was not, as a build
    does not follow them either.
    """

    name: str
    """`[task].name`, or the directory's."""
    path: Path
    format: TaskFormat
    config: HarborConfig
    steps: tuple[HarborStep, ...]
    context: Path
    """What the image is built from."""
    dockerfile: bool
    """There is a `Dockerfile` in `context`."""
    compose: Compose | None
    """The services beside, and overrides for, the main container."""
    upload_context: bool
    """The files of `context` belong into the working directory of a prebuilt image."""
    terminal_bench: TerminalBench | None
    is_migrated: bool = False
    """An old task whose files are where Harbor has them, with Harbor's compose file if any."""
    digest: str
    """`sha256:` and the content hash of Harbor's registry."""
    notes: tuple[str, ...]
    """What is odd and stops nothing, such as keys that nothing reads."""
