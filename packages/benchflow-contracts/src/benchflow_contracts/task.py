"""A Task: the problem, as it lies in a directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ._model import Model
from .reward import Grading
from .sandbox import ResourceLimits

IMAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
"""What an image may be called by files that the operator did not write."""


class SetupCommand(Model):
    """A command run as `user` in the sandbox before the environment starts."""

    command: str
    timeout_sec: float = Field(default=600, gt=0)
    cwd: str | None = None
    env: Mapping[str, str] = {}
    user: str = "root"


class TaskAgent(Model):
    """`[agent]`: limits on the agent's turn."""

    timeout_sec: float | None = Field(default=None, gt=0)
    prompt_prefix: str = ""
    max_turns: int = Field(default=1, ge=1)
    """Prompt turns in all: the instruction and the user's nudges."""


class TaskEnvironment(Model):
    """`[environment]`: the box."""

    image: str | None = Field(default=None, pattern=IMAGE_NAME)
    """A name, never a path: a task must not choose a directory of the host."""
    workdir: str = "/workspace"
    env: Mapping[str, str] = {}
    setup_commands: tuple[SetupCommand, ...] = ()
    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)

    def limits(self) -> ResourceLimits:
        """Return the caps that the task sets over the provider's defaults."""
        given = {
            "memory_mb": self.memory_mb,
            "cpus": self.cpus,
            "disk_mb": self.storage_mb,
            "pids": self.pids,
        }
        return ResourceLimits.model_validate({k: v for k, v in given.items() if v is not None})


class TaskVerifier(Model):
    """`[verifier]`: how the result is graded."""

    type: Literal["script", "rewards", "judge"] = "script"
    isolation: Literal["hermetic", "twin", "shared"] = "hermetic"
    timeout_sec: float = Field(default=600, gt=0)
    env: Mapping[str, str] = {}
    reward_range: tuple[float, float] = (0.0, 1.0)
    user: str = "root"
    executes_artifacts: bool = False
    """The tests run code that the agent wrote; they do so in an unprivileged child."""
    rewards: tuple[Mapping[str, Any], ...] = ()
    """For `type = "rewards"`: reward functions and their weights; for any type,
    extra signals beside the verdict when `weight = 0`."""
    judge: Mapping[str, Any] = {}
    """For `type = "judge"`."""

    @model_validator(mode="after")
    def _range_holds(self) -> "TaskVerifier":
        low, high = self.reward_range
        if not low < high:
            raise ValueError(f"reward_range [{low}, {high}] is empty")
        return self


class ScriptedAnswer(Model):
    """One rule of the scripted user: a pattern and what to say."""

    match: str = ".*"
    """A regular expression searched in the question's text."""
    option: str | None = None
    """The option to choose: its id or label, or a regular expression that is found in
    the id, label or description of exactly one."""
    text: str | None = None
    """What to say where no option fits and free text is allowed."""


class TaskUser(Model):
    """`[user]`: who answers the agent's questions."""

    mode: Literal["scripted", "simulated", "auto", "human"] = "auto"
    answers: tuple[ScriptedAnswer, ...] = ()
    nudges: tuple[str, ...] = ()
    """Prompts sent after each finished turn, in order."""
    persona: str = ""
    """For `simulated`: who the user is and what they know."""


class TaskConfig(Model):
    """`task.toml`. Unknown keys are errors."""

    schema_version: Literal["1.0"] = "1.0"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$")
    description: str = ""
    authors: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    artifacts: tuple[str, ...] = ()
    """Absolute paths that a hermetic grader copies out of the agent's box."""
    agent: TaskAgent = TaskAgent()
    environment: TaskEnvironment = TaskEnvironment()
    verifier: TaskVerifier = TaskVerifier()
    user: TaskUser = TaskUser()


class Task(Model):
    """A task directory, read and checked."""

    id: str
    """`config.name`, unique within a dataset."""
    path: Path
    instruction: str
    config: TaskConfig
    digest: str
    """sha256 over the names and contents of every file in the directory."""

    @property
    def files_dir(self) -> Path:
        """What is copied to `/` of the box."""
        return self.path / "environment" / "files"

    @property
    def skills_dir(self) -> Path:
        """The skills that the task brings."""
        return self.path / "environment" / "skills"

    @property
    def tests_dir(self) -> Path:
        """What only a grading box ever sees."""
        return self.path / "tests"

    @property
    def solution_dir(self) -> Path:
        """What only the oracle ever sees."""
        return self.path / "solution"

    @property
    def grading(self) -> Grading:
        """The isolation that the verifier asks for."""
        return self.config.verifier.isolation
