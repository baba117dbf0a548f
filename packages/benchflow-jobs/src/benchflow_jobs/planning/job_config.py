"""JobConfig: the tables of a `job.toml`."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from benchflow_contracts import Model, RareModel
from benchflow_contracts.errors import Boundary
from benchflow_engine.config import RunConfig
from benchflow_engine.task_override import Image, Seconds, TaskOverride
from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from benchflow_jobs.options import JobName
from benchflow_jobs.orders import MAX_REPLICATIONS

LOCAL: Final = "local"
_VARIANT = r"^[A-Za-z0-9][A-Za-z0-9._=,+:-]*$"
"""Without `#`, `@` and `/`, which have a meaning in the name of a slot."""


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float) or value in {math.inf, -math.inf}:
        raise ValueError("it is not a text, a finite number or a boolean")
    return value


Binding = Annotated[Any, BeforeValidator(_scalar)]
Bindings = Mapping[Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$")], Binding]


class JobSettings(RareModel):
    """`[job]`: names and places. Results do not depend on them."""

    name: JobName | None = None
    """Name of the job's directory (default: a new name with the time)."""
    id: JobName | None = None
    """Name of the experiment that several jobs belong to."""
    jobs_dir: Path = Path("jobs")
    """Directory of jobs."""


class DatasetConfig(RareModel):
    """`[dataset]`: the tasks."""

    paths: tuple[str, ...] = ()
    """Sources: a task, a directory of tasks, a list of tasks in JSONL, the URL of a git repository
    or a registry.json. Paths are relative to the working directory."""
    name: str | None = None
    """Of a registry.json: `NAME` or `NAME@VERSION`."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of tasks (default: all that can run here). The first ones are taken."""
    include: tuple[str, ...] = ()
    """Globs over task ids; empty takes all."""
    exclude: tuple[str, ...] = ()
    """Globs over task ids."""


class DesignConfig(RareModel):
    """`[design]`: which rollouts there are, and in which order."""

    kind: Literal["paired", "unpaired", "sweep", "regression"] = "paired"
    """Comparison of the variants. `paired`: on the same tasks with the same seeds. `unpaired`: each
    variant has seeds of its own. `sweep`: the variants of `[sweep]`. `regression`: one variant,
    over time."""
    replications: int = Field(default=1, ge=1, le=MAX_REPLICATIONS)
    """Rollouts of each variant on each task."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the order of the tasks and of the rollouts (default: the order of the dataset)."""
    schedule: Literal["parallel-independent", "sequential-shared"] = "parallel-independent"
    """`parallel-independent`: each rollout starts from its task. `sequential-shared`: the rollouts
    of a variant run one after the other, and share a learner store."""
    baseline: str | None = None
    """Variant that the others are compared with (default: the first one)."""

    @property
    def is_sequential(self) -> bool:
        """Whether the rollouts of a variant run in order, and share a learner store."""
        return self.schedule == "sequential-shared"


class RunLayer(RareModel):
    """Tables of a RunConfig, with an image and bindings. Later layers lie over earlier ones."""

    tables: Mapping[str, Any] = {}
    """Tables of a RunConfig. In a file, they are written beside `image` and `bindings`."""
    image: Image | None = None
    """Image of the sandbox, instead of the task's."""
    bindings: Bindings = Field(default_factory=dict)
    """Values for the agent, as its variables `BENCHFLOW_BINDING_<NAME>`."""

    @model_validator(mode="before")
    @classmethod
    def _collect_tables(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        given = cast("Mapping[str, Any]", data)
        tables = {key: given[key] for key in given if key in RunConfig.model_fields}
        rest = {key: given[key] for key in given if key not in tables}
        return {**rest, "tables": {**rest.get("tables", {}), **tables}} if tables else rest


class VariantConfig(RunLayer):
    """`[[variants]]`: one of the configurations that are compared."""

    id: str = Field(pattern=_VARIANT, max_length=200)
    """Unique in the job."""


class ConcurrencyConfig(RareModel):
    """`[concurrency]`: what may run at once."""

    slots: int = Field(default=4, ge=1)
    """Rollouts."""
    builds: int | None = Field(default=None, ge=1)
    """Builds of images (default: no limit)."""
    memory_mb: int | None = Field(default=None, ge=1)
    """Memory for all sandboxes together, in MB (default: not counted)."""
    endpoints: Mapping[str, Annotated[int, Field(ge=1)]] = {}
    """Rollouts by model endpoint, as `model.base_url` has it (default: by its answers)."""


class BudgetConfig(RareModel):
    """`[budget]`: limits at which the job stops (default: none)."""

    cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost of sandboxes with a price and of recorded model calls. Nothing more starts if the next
    rollout would pass the limit: it is expected to cost as much as those that have ended."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens of all model calls."""
    wall_sec: Seconds | None = None
    """Seconds of one run of the job."""
    rollout_sec: Seconds | None = None
    """Seconds of one rollout, from its start to its end."""


class RetryConfig(RareModel):
    """`[retry]`: more attempts after errors that may pass."""

    retries: int = Field(default=2, ge=0)
    """More attempts of a slot in one run of the job."""
    max_attempts: int = Field(default=10, ge=1)
    """Attempts of a slot in all runs of the job together."""
    pauses_sec: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = (2, 10, 30)
    """Seconds before each of them; the last one holds for all further ones."""
    boundaries: tuple[Boundary, ...] = ("sandbox", "reward")
    """Boundaries of the errors that are tried again. Errors of the host always are."""


class BreakerConfig(RareModel):
    """`[breaker]`: the same permanent error, one rollout after the other, pauses."""

    variant_after: int = Field(default=5, ge=1)
    """Rollouts of a variant, after which the variant is paused."""
    job_after: int = Field(default=10, ge=1)
    """Rollouts of the job, after which the job is paused."""


class PruningConfig(RareModel):
    """`[pruning]`: a variant that only fails is given up."""

    consecutive_failures: int | None = Field(default=None, ge=1)
    """Slots of a variant without a score, one after the other (default: never)."""


class LearnerConfig(RareModel):
    """`[learner]`: the learner store of each variant of a sequential job."""

    max_mb: int = Field(default=64, ge=1)
    """Most megabytes of a version. An agent that leaves more makes no new version."""


def _flattened(value: object) -> object:
    """Return a grid with dotted keys, also if its keys are written as tables."""
    return dict(_axes(cast("Mapping[str, object]", value))) if isinstance(value, Mapping) else value


def _axes(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, item in table.items():
        if isinstance(item, Mapping):
            yield from _axes(cast("Mapping[str, object]", item), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", tuple(item) if isinstance(item, list) else item  # pyright: ignore[reportUnknownArgumentType]


Grid = Annotated[
    Mapping[str, Annotated[tuple[Any, ...], Field(min_length=1)]], BeforeValidator(_flattened)
]


class EvidenceConfig(RareModel):
    """`[evidence]`: artifacts beside the files of the rollouts."""

    store: bool = False
    """Copy the main files of each scored rollout into `artifacts/` of the job, by their digest."""
    url: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9+.-]*://.")
    """Place of the artifacts, instead of `artifacts/` of the job: `s3://BUCKET/PREFIX`, `gs://`,
    `az://` or `file:///DIRECTORY`. The files of rollouts on other hosts come through it."""


class BackendConfig(RareModel):
    """`[backend]`: where rollouts run. Results do not depend on it."""

    name: str = LOCAL
    """`local`, in the process of the job; a registry name such as `ray`; or an import path
    `module:attr` of a factory."""
    options: Mapping[str, Any] = {}
    """Keyword arguments of the factory, such as `address`."""

    @property
    def is_local(self) -> bool:
        """Whether rollouts run in the process of the job."""
        return self.name == LOCAL


class JobConfig(Model):
    """A job, as its file describes it."""

    job: JobSettings = JobSettings()
    dataset: DatasetConfig = DatasetConfig()
    design: DesignConfig = DesignConfig()
    run: RunLayer = RunLayer()
    """`[run]`: the configuration of every rollout."""
    variants: tuple[VariantConfig, ...] = ()
    """Without variants there is one, named `default`, with the configuration of `[run]`."""
    sweep: Grid = Field(default_factory=dict)
    """`[sweep]`: values by the dotted key of a variant, such as `"agent.model"`. Each combination
    is a variant."""
    tasks: Mapping[str, TaskOverride] = {}
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    budget: BudgetConfig = BudgetConfig()
    retry: RetryConfig = RetryConfig()
    breaker: BreakerConfig = BreakerConfig()
    pruning: PruningConfig = PruningConfig()
    learner: LearnerConfig = LearnerConfig()
    evidence: EvidenceConfig = EvidenceConfig()
    backend: BackendConfig = BackendConfig()
