"""A Task: the problem in a directory."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ._model import Model, RareModel
from .agent import McpServer
from .container import NO_OPTIONS, ContainerOptions
from .image import ImageRecipe
from .limits import ResourceLimits
from .sandbox import NetworkMode
from .service import ServiceSpec
from .verdict import MAX_REWARD, Grading, RewardFiles

_MANY_PIDS = 16384
"""The limit of an uncapped sandbox: no task needs more, and it stops a fork bomb."""

IMAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
"""The image names that are allowed in files that the operator did not write."""


class Artifact(Model):
    """A file or directory that is copied out of the agent's sandbox, also to a hermetic grader.

    In `task.toml` a bare string is a `source`.
    """

    source: str
    """An absolute path. Some grading protocols allow one relative to the working directory."""
    destination: str = ""
    """Its path below `artifacts/` of the record; `""` mirrors `source`. A grader always finds it at
    `source`."""
    service: str = ""
    """The service to copy it from; `""` is the sandbox itself."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths in a directory to exclude, as in `tar --exclude`."""

    @model_validator(mode="after")
    def _destination_stays_below(self) -> "Artifact":
        path = PurePosixPath(self.destination)
        if path.is_absolute() or ".." in path.parts or path == PurePosixPath("manifest.json"):
            raise ValueError(f"destination {self.destination!r} is not a path below artifacts/")
        return self


def _artifact(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


Artifacts = tuple[Annotated[Artifact, BeforeValidator(_artifact)], ...]


class SetupCommand(Model):
    """A command run as `user` in the sandbox before the environment starts.

    The user `""` is the default user of the sandbox.
    """

    command: str
    timeout_sec: float = Field(default=600, gt=0)
    cwd: str | None = None
    env: Mapping[str, str] = {}
    user: str = "root"


class CollectCommand(SetupCommand):
    """A command that prepares files to be copied out of a sandbox or of a service."""

    service: str = ""
    """Where it runs; `""` is the sandbox itself. A service does not support `cwd` and `env`."""


class Healthcheck(RareModel):
    """A command that must succeed before an agent connects, as HEALTHCHECK in a Dockerfile."""

    command: str
    interval_sec: float = Field(default=5, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    """Failures in this period do not count."""
    start_interval_sec: float = Field(default=5, gt=0)
    """Between the checks in the start period."""
    retries: int = Field(default=3, ge=1)
    """Failures in a row that make the sandbox unhealthy."""


class TaskAgent(Model):
    """`[agent]`: settings of the agent's turns."""

    network: NetworkMode | None = None
    """The network during the agent's turns; `None` is the environment's."""
    allowed_hosts: tuple[str, ...] = ()
    """For `network = "allowlist"`."""
    user: str | None = None
    """The agent's user, which must exist; `None` is the environment's."""
    timeout_sec: float | None = Field(default=None, gt=0)
    prompt_prefix: str = ""
    max_turns: int = Field(default=1, ge=1)
    """Prompt turns in all: the instruction and the user's nudges."""
    max_calls: int | None = Field(default=None, ge=0)
    """Model calls on each path of the tree, also those beside the agent's work, such as for a
    title. The gateway refuses the next call, the agent's work ends, and what is there is graded."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Input and output tokens of the model calls on each path, as the model endpoint counts them.
    No call begins after this number, so the last call may exceed it."""
    max_messages: int | None = Field(default=None, ge=0)
    """Messages of one model call, in the form of Chat Completions, with the system prompt. The
    gateway refuses a call that has as many, the agent's work ends, and what is there is graded."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """The cost of the model calls on each path. It needs the price of the model."""
    other_limits: tuple[str, ...] = ()
    """Limits of a foreign task that only the agents of `self_limited` apply, such as
    `working_limit = 60`. Another agent that acts by a model is refused."""
    self_limited: tuple[str, ...] = ()
    """Agents that apply `max_messages`, `max_cost_usd` and `other_limits` by themselves, such as
    the solver of a foreign task. The gateway does not apply them to these agents."""

    @property
    def model_limits(self) -> tuple[str, ...]:
        """The limits that the gateway or the agent itself applies, such as `max_calls = 9`."""
        names = ("max_calls", "max_tokens", "max_messages", "max_cost_usd")
        values = {name: getattr(self, name) for name in names}
        given = [f"{name} = {value:g}" for name, value in values.items() if value is not None]
        return (*given, *self.other_limits)

    @model_validator(mode="after")
    def _hosts_have_their_network(self) -> "TaskAgent":
        if self.allowed_hosts and self.network != "allowlist":
            raise ValueError("allowed_hosts needs network = 'allowlist'")
        return self


class TaskEnvironment(Model):
    """`[environment]`: the sandbox."""

    provider: str | None = Field(default=None, min_length=1)
    """The stateful environment: the name that a package has in the group
    `benchflow.environments`. Without one, `environment.toml` beside the task is looked for."""
    options: Mapping[str, Any] = {}
    """Settings of the `provider`, which reads and checks them."""
    image: str | None = Field(default=None, pattern=IMAGE_NAME)
    """A name, never a path: a task must not choose a directory of the host."""
    workdir: str = "/workspace"
    """`""` is the image's own."""
    user: str = "agent"
    """The user of commands in the sandbox, and of the agent unless `[agent] user` is set. `""` is
    the image's own user."""
    env: Mapping[str, str] = {}
    host_env: Mapping[str, str] = {}
    """Values such as `${NAME}` or `${NAME:-default}`, filled in from the operator's variables when
    the sandbox is created, if the operator allows NAME. Filled-in values are never recorded."""
    keep_entrypoint: bool = False
    """Whether the image's own entrypoint runs, as with `SandboxSpec.entrypoint = "image"`."""
    network: NetworkMode = "none"
    """The network, except during the agent's turns and tests in this sandbox."""
    allowed_hosts: tuple[str, ...] = ()
    """For `network = "allowlist"`."""
    mcp_servers: tuple[McpServer, ...] = ()
    """Tool servers in the sandbox for the agent."""
    skills_dir: str | None = None
    """The absolute path of skills in the image for the agent."""
    image_timeout_sec: float | None = Field(default=None, gt=0)
    """The time to build or pull the image, in addition to the start of the sandbox."""
    healthcheck: Healthcheck | None = None
    setup_commands: tuple[SetupCommand, ...] = ()
    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    uncapped: bool = False
    """Whether limits that are not set are the provider's defaults, not BenchFlow's."""

    def limits(self) -> ResourceLimits:
        """Return the limits that the task sets over the provider's defaults."""
        given = {
            "memory_mb": self.memory_mb,
            "cpus": self.cpus,
            "disk_mb": self.storage_mb,
            "pids": self.pids,
        }
        base = {"pids": _MANY_PIDS, "disk_mb": None} if self.uncapped else {}
        known = {k: v for k, v in given.items() if v is not None}
        return ResourceLimits.model_validate({**base, **known})


class TaskVerifier(Model):
    """`[verifier]`: how the result is graded."""

    type: str = Field(default="script", min_length=1)
    """`script`, `rewards`, `judge`, `environment`, or a name that another package registers in the
    group `benchflow.rewards`."""
    options: Mapping[str, Any] = {}
    """Settings of a reward of another package, which reads and checks them."""
    isolation: Literal["hermetic", "twin", "shared"] = "hermetic"
    timeout_sec: float = Field(default=600, gt=0)
    env: Mapping[str, str] = {}
    host_env: Mapping[str, str] = {}
    """As `[environment] host_env`."""
    network: NetworkMode = "none"
    """The network of the tests, in every grading mode."""
    allowed_hosts: tuple[str, ...] = ()
    """For `network = "allowlist"`."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    user: str = "root"
    """`""` is the default user of the sandbox."""
    protocol: str = Field(default="benchflow", min_length=1)
    """How test.sh is placed and run, and how its reward is read: `benchflow`, or a name that a
    package registers in the group `benchflow.grading_protocols`."""
    environment: TaskEnvironment | None = None
    """The grading sandbox, if it differs from the agent's. Only for hermetic grading."""
    tests_in_image: bool = False
    """Whether `/tests` is in the grading image. Tests are not uploaded then."""
    collect: tuple[CollectCommand, ...] = ()
    """Run in the agent's sandbox after the agent ended, before files are copied out of it. A
    failure is recorded, and the grading continues."""
    expects_changes: tuple[str, ...] = ()
    """System paths, or patterns of them, that an honest agent changes, with everything below them.
    The integrity report of a twin does not include them."""
    may_grade_in_place: bool = False
    """For `isolation = "twin"`: if the result may include more than files, such as a server that
    the agent started, and the twin does not give the full reward, run the tests again in the
    agent's own sandbox. That verdict is never `clean`."""
    reward_files: RewardFiles = "strict"
    """Who may write the reward files, and how many may exist, if the protocol has this choice."""
    executes_artifacts: bool = False
    """Whether the tests run code of the agent, in an unprivileged child process."""
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
        if max(abs(low), abs(high)) > MAX_REWARD:
            raise ValueError(f"reward_range [{low}, {high}] is wider than {MAX_REWARD:g}")
        return self


class ScriptedAnswer(RareModel):
    """One rule of the scripted user: a pattern and what to say."""

    match: str = ".*"
    """A regular expression searched in the question's text."""
    option: str | None = None
    """The option to choose: its id or label, or a regular expression that matches the id, label or
    description of exactly one option."""
    text: str | None = None
    """The text if no option fits and free text is allowed."""


class TaskUser(Model):
    """`[user]`: the user who answers the agent's questions."""

    mode: Literal["scripted", "simulated", "auto", "human"] = "auto"
    answers: tuple[ScriptedAnswer, ...] = ()
    nudges: tuple[str, ...] = ()
    """Prompts sent after each finished turn, in order."""
    persona: str = ""
    """For `simulated`: who the user is and what they know."""


class TaskSolution(Model):
    """`[solution]`: settings of the reference solution."""

    env: Mapping[str, str] = {}
    host_env: Mapping[str, str] = {}
    """As `[environment] host_env`."""
    command: str = ""
    """The shell command that plays the solution, after `solve.sh` became executable. `""` runs
    `solve.sh` by bash, or by sh if there is no bash."""
    may_fail: bool = False
    """Whether a failed solution is only recorded."""


class TaskConfig(Model):
    """`task.toml`. Unknown keys are errors."""

    schema_version: Literal["1.0"] = "1.0"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$")
    description: str = ""
    authors: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    artifacts: Artifacts = ()
    """Copied out of the agent's sandbox, into the record and for a hermetic grader."""
    agent: TaskAgent = TaskAgent()
    environment: TaskEnvironment = TaskEnvironment()
    verifier: TaskVerifier = TaskVerifier()
    user: TaskUser = TaskUser()
    solution: TaskSolution = TaskSolution()
    step_reward: Literal["mean", "final"] = "mean"
    """How the rewards of several steps become the rollout's reward. `mean` is by key; a step
    without the key counts as 0. A step that was not reached does not count. If a step that was
    reached has no verdict, the rollout does not have a reward."""


class TaskParts(Model):
    """The parts of a task on the host. A part that is `None` or empty does not exist.

    Never read from a task's own file, because a task must not choose a path of the host.
    """

    files: Path | None = None
    """Copied to `/` of the sandbox."""
    workdir_files: Path | None = None
    """Copied to the working directory, owned by the sandbox's user."""
    skills: Path | None = None
    """The skills of the task."""
    tests: tuple[Path, ...] = ()
    """Directories that are merged to `/tests`, later ones over earlier ones. Only graders see
    them."""
    test_script: str = "test.sh"
    """Relative to `/tests`."""
    solution: Path | None = None
    """Only the oracle sees it."""
    prior: Path | None = None
    """The work of an agent before the first prompt, as an ATIF document. An agent must load it,
    unless it plays the solution."""
    recipe: ImageRecipe | None = None
    """How the image of the sandbox is built."""
    grading_recipe: ImageRecipe | None = None
    """How the image of `[verifier.environment]` is built."""
    services: tuple[ServiceSpec, ...] = ()
    """Containers beside the sandbox."""
    inner_networks: frozenset[str] = frozenset()
    """Networks of services without a way out."""
    container: ContainerOptions = Field(default_factory=lambda: NO_OPTIONS)
    """Options of the sandbox itself."""

    @classmethod
    def of(cls, root: Path) -> "TaskParts":
        """Return the parts of a task of our own format."""

        def found(name: str) -> Path | None:
            path = f"{root}/{name}"  # Each rollout asks, mostly in vain.
            return Path(path) if os.path.isdir(path) else None  # noqa: PTH112

        tests = found("tests")
        return cls(
            files=found("environment/files"),
            skills=found("environment/skills"),
            tests=() if tests is None else (tests,),
            solution=found("solution"),
        )


class TaskStep(RareModel):
    """One of several prompts of a task, and its grading."""

    name: str = Field(pattern=r"^[^/\\\x00]*[^/\\\x00. ]$")
    """Unique in its task, and a valid name of a directory."""
    instruction: str
    agent: TaskAgent = TaskAgent()
    verifier: TaskVerifier = TaskVerifier()
    artifacts: Artifacts = ()
    """In addition to the task's."""
    setup_commands: tuple[SetupCommand, ...] = ()
    """Run before the prompt, after `parts.workdir_files` are uploaded."""
    healthcheck: Healthcheck | None = None
    """After the setup commands."""
    emptied_directories: tuple[str, ...] = ()
    """Absolute paths of directories that are emptied before this step. Every user may write to
    them afterwards."""
    min_reward: Mapping[str, float] = {}
    """By name. If a reward is missing or lower, no further step runs."""
    parts: TaskParts = TaskParts()


class Task(Model):
    """A task directory, read and checked."""

    id: str
    """`config.name`, unique within a dataset."""
    path: Path
    instruction: str
    config: TaskConfig
    digest: str
    """sha256 over the names and contents of every file in the directory."""
    format: str = "benchflow"
    """The reader of the directory: BenchFlow's loader, or the adapter of this name."""
    own_parts: TaskParts | None = None
    """Set by adapters of other formats, and in the effective task of a rollout."""
    steps: tuple[TaskStep, ...] = ()
    """Prompts that are graded one by one in one sandbox. The `instruction`, tests and solution of
    the task are then not used. Empty for a task with one prompt."""
    override: Mapping[str, Any] = {}
    """The values that a job laid over the directory's own, as JSON. `config` has them already."""

    @property
    def parts(self) -> TaskParts:
        """The paths of the task's parts."""
        return self.own_parts or TaskParts.of(self.path)

    @property
    def grading(self) -> Grading:
        """The isolation that the verifier asks for."""
        return self.config.verifier.isolation

    def step(self, index: int) -> "Task":
        """Return step `index` as a separate task, for its grading.

        The sandbox, its files and its skills come from the task, tests and solution from the step.
        """
        step = self.steps[index]
        config = self.config.model_copy(
            update={
                "agent": step.agent,
                "verifier": step.verifier,
                "artifacts": (*self.config.artifacts, *step.artifacts),
            }
        )
        own = ("tests", "test_script", "solution", "grading_recipe")
        graded = {name: getattr(step.parts, name) for name in own}
        parts = self.parts.model_copy(update=graded)
        update = {"instruction": step.instruction, "config": config, "own_parts": parts}
        return self.model_copy(update={**update, "steps": ()})
