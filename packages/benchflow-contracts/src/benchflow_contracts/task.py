"""A Task: the problem, as it lies in a directory."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ._model import Model
from .agent import McpServer
from .container import ContainerOptions
from .image import ImageRecipe
from .limits import ResourceLimits
from .sandbox import NetworkMode
from .service import ServiceSpec
from .verdict import Grading, RewardFiles

_MANY_PIDS = 16384
"""What an uncapped box may have: no task needs more, and a fork bomb ends there."""

IMAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
"""What an image may be called by files that the operator did not write."""


class Artifact(Model):
    """A file or directory that outlives the agent's box, and that a hermetic grader is given.

    In `task.toml` a bare string is a `source`.
    """

    source: str
    """An absolute path. Some grading protocols allow one relative to the working directory."""
    destination: str = ""
    """Where it is kept below `artifacts/` of the record; `""` mirrors `source`. A grader finds it
    at `source` all the same."""
    service: str = ""
    """The service that it is taken from; `""` is the box itself."""
    exclude: tuple[str, ...] = ()
    """Patterns of what to leave out of a directory, as `tar --exclude` reads them."""

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

    The user `""` is the box's own default user.
    """

    command: str
    timeout_sec: float = Field(default=600, gt=0)
    cwd: str | None = None
    env: Mapping[str, str] = {}
    user: str = "root"


class CollectCommand(SetupCommand):
    """A command that prepares what is copied out of a box, or of a service beside it."""

    service: str = ""
    """Where it runs; `""` is the box itself. A service takes no `cwd` and no `env`."""


class Healthcheck(Model):
    """A command that must succeed before any agent is connected, as in a Dockerfile."""

    command: str
    interval_sec: float = Field(default=5, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    """Failures within it do not count."""
    start_interval_sec: float = Field(default=5, gt=0)
    """Between the tries within the start period."""
    retries: int = Field(default=3, ge=1)
    """Failures in a row that make the box unhealthy."""


class TaskAgent(Model):
    """`[agent]`: limits on the agent's turn, and what holds only for its length."""

    network: NetworkMode | None = None
    """What the box reaches while an agent is in it; `None` is the environment's."""
    allowed_hosts: tuple[str, ...] = ()
    """For `network = "allowlist"`."""
    user: str | None = None
    """Who the agent is, if not the environment's user. It must be there already: none is made."""
    timeout_sec: float | None = Field(default=None, gt=0)
    prompt_prefix: str = ""
    max_turns: int = Field(default=1, ge=1)
    """Prompt turns in all: the instruction and the user's nudges."""

    @model_validator(mode="after")
    def _hosts_have_their_network(self) -> "TaskAgent":
        if self.allowed_hosts and self.network != "allowlist":
            raise ValueError("allowed_hosts needs network = 'allowlist'")
        return self


class TaskEnvironment(Model):
    """`[environment]`: the box."""

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
    """Who commands in the box run as, and the agent, unless it has a user of its own. `""` is the
    image's own user."""
    env: Mapping[str, str] = {}
    host_env: Mapping[str, str] = {}
    """Values of `${NAME}` or `${NAME:-default}`, filled in from the operator's variables when
    the box is made, where the operator allows NAME. What is filled in is never recorded."""
    keep_entrypoint: bool = False
    """The image's own entrypoint runs, as `SandboxSpec.entrypoint = "image"` says."""
    network: NetworkMode = "none"
    """What the box reaches, but for the agent's time in it and tests that run in it."""
    allowed_hosts: tuple[str, ...] = ()
    """For `network = "allowlist"`."""
    mcp_servers: tuple[McpServer, ...] = ()
    """Tool servers in the box that the agent is told of."""
    skills_dir: str | None = None
    """Skills in the image, by the absolute path in the box, that the agent is told of."""
    image_timeout_sec: float | None = Field(default=None, gt=0)
    """What making or fetching the image may take, beside the start of the box."""
    healthcheck: Healthcheck | None = None
    setup_commands: tuple[SetupCommand, ...] = ()
    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    uncapped: bool = False
    """Amounts that are not given are the provider's defaults, not ours."""

    def limits(self) -> ResourceLimits:
        """Return the caps that the task sets over the provider's defaults."""
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
    """`script`, `rewards`, `judge`, or the name that another package has in the group
    `benchflow.rewards`."""
    options: Mapping[str, Any] = {}
    """Settings of a reward of another package, which reads and checks them."""
    isolation: Literal["hermetic", "twin", "shared"] = "hermetic"
    timeout_sec: float = Field(default=600, gt=0)
    env: Mapping[str, str] = {}
    host_env: Mapping[str, str] = {}
    """As `[environment] host_env`."""
    network: NetworkMode = "none"
    """What the tests reach, in whatever box they run."""
    allowed_hosts: tuple[str, ...] = ()
    """For `network = "allowlist"`."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    user: str = "root"
    """`""` is the box's own default user."""
    protocol: str = Field(default="benchflow", min_length=1)
    """How test.sh is placed and run, and its reward is read. `benchflow` is the default
    of the rewards; another name is one that a package has in the group
    `benchflow.grading_protocols`."""
    environment: TaskEnvironment | None = None
    """The grading box, when it is not made as the agent's. Only for hermetic grading."""
    tests_in_image: bool = False
    """The grading box's image brings `/tests`; none are uploaded."""
    collect: tuple[CollectCommand, ...] = ()
    """Run in the agent's box once the agent is dead, before anything is copied out of it.
    One that fails is noted."""
    expects_changes: tuple[str, ...] = ()
    """Paths of the system, or patterns of them, that an honest agent changes; what is below
    them is meant too. A twin's integrity report leaves them out."""
    may_grade_in_place: bool = False
    """For `isolation = "twin"`: when something that is not in files may be a part of the result,
    such as a server that the agent started, and the twin does not give the full reward, the tests
    run once more in the agent's own box. That verdict is never `clean`."""
    reward_files: RewardFiles = "strict"
    """Who may write the reward files, and how many may exist, if the protocol has this choice."""
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


class TaskSolution(Model):
    """`[solution]`: what only the reference solution gets."""

    env: Mapping[str, str] = {}
    host_env: Mapping[str, str] = {}
    """As `[environment] host_env`."""
    command: str = ""
    """The shell command that plays the solution, after `solve.sh` became executable. `""` runs
    `solve.sh` by bash, or by sh if there is no bash."""
    may_fail: bool = False
    """The exit code of the solution is only recorded."""


class TaskConfig(Model):
    """`task.toml`. Unknown keys are errors."""

    schema_version: Literal["1.0"] = "1.0"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$")
    description: str = ""
    authors: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    artifacts: Artifacts = ()
    """What is copied out of the agent's box: into the record, and for a hermetic grader."""
    agent: TaskAgent = TaskAgent()
    environment: TaskEnvironment = TaskEnvironment()
    verifier: TaskVerifier = TaskVerifier()
    user: TaskUser = TaskUser()
    solution: TaskSolution = TaskSolution()
    step_reward: Literal["mean", "final"] = "mean"
    """In a task of several steps: how their rewards become the rollout's. `mean` is by key,
    where a step that lacks one counts as 0 there. A step that was never reached does not
    count; one that was, and has no verdict, leaves the rollout without a reward."""


class TaskParts(Model):
    """Where the parts of a task lie on the host. What is `None` or empty is not there.

    Never read from a task's own file: a task must not choose a path of the host.
    """

    files: Path | None = None
    """What is copied to `/` of the box."""
    workdir_files: Path | None = None
    """What is copied to the working directory, as the box's user."""
    skills: Path | None = None
    """The skills that the task brings."""
    tests: tuple[Path, ...] = ()
    """What only a grader ever sees at `/tests`: directories that are merged, later ones over
    earlier ones."""
    test_script: str = "test.sh"
    """Relative to `/tests`."""
    solution: Path | None = None
    """What only the oracle ever sees."""
    prior: Path | None = None
    """What some agent did before the first prompt, as an ATIF document. Only who plays the
    solution can go on without having loaded it."""
    recipe: ImageRecipe | None = None
    """What the box's image is made from."""
    grading_recipe: ImageRecipe | None = None
    """What the image of `[verifier.environment]` is made from."""
    services: tuple[ServiceSpec, ...] = ()
    """Containers beside the box."""
    inner_networks: frozenset[str] = frozenset()
    """Networks of services that nothing leads out of."""
    container: ContainerOptions = ContainerOptions()
    """Of the box itself."""

    @classmethod
    def of(cls, root: Path) -> "TaskParts":
        """Return the parts of a task of our own format."""

        def found(*names: str) -> Path | None:
            path = root.joinpath(*names)
            return path if path.is_dir() else None

        tests = found("tests")
        return cls(
            files=found("environment", "files"),
            skills=found("environment", "skills"),
            tests=() if tests is None else (tests,),
            solution=found("solution"),
        )


class TaskStep(Model):
    """One prompt of a task of several, and its grading."""

    name: str = Field(pattern=r"^[^/\\\x00]*[^/\\\x00. ]$")
    """Unique in its task, and a name of a directory."""
    instruction: str
    agent: TaskAgent = TaskAgent()
    verifier: TaskVerifier = TaskVerifier()
    artifacts: Artifacts = ()
    """Beside the task's."""
    setup_commands: tuple[SetupCommand, ...] = ()
    """Run before the prompt, after `parts.workdir_files` are there."""
    healthcheck: Healthcheck | None = None
    """After the setup commands."""
    emptied_directories: tuple[str, ...] = ()
    """Absolute paths of directories that are emptied between the step before and this one. Every
    user may write to them then."""
    min_reward: Mapping[str, float] = {}
    """By name. No further step runs when one of these is missing or below."""
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
    """Who reads the directory: our own loader, or the adapter of this name."""
    own_parts: TaskParts | None = None
    """Set by adapters of other formats."""
    steps: tuple[TaskStep, ...] = ()
    """Prompts that are graded one by one in one box; `instruction`, tests and solution of the
    task are then unused. Empty in a task of one prompt."""

    @property
    def parts(self) -> TaskParts:
        """Where its files lie."""
        return self.own_parts or TaskParts.of(self.path)

    @property
    def grading(self) -> Grading:
        """The isolation that the verifier asks for."""
        return self.config.verifier.isolation

    def step(self, index: int) -> "Task":
        """Return step `index` as a task of its own, for whoever grades it.

        The box, its files and its skills are the task's; tests and solution are the step's.
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
