"""ResolvedJob: every value of a job, decided before anything runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product

from benchflow_contracts import ListedTask, Model, Task
from benchflow_engine.config import RunConfig
from benchflow_engine.learner import LEARNER_DIR, LEARNER_ENV
from benchflow_engine.task_override import TaskOverride, overridden_task

from .dataset import Dataset, find_dataset
from .job_config import DesignConfig, JobConfig
from .job_file import check_config, dataset_problems
from .problems import Problem, did_you_mean, raise_problems
from .slot_table import Place, PlannedTask, SlotTable
from .variants import Variant, laid_over, resolve_variants


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """The image of a slot."""

    image: str | None = None
    """`None` is the task's own."""
    origin: str = "task"
    """The key that sets it."""


class Revision(Model):
    """One state of a plan. A later revision only adds tasks, variants and slots at the end."""

    digest: str
    variants: int
    tasks: int
    slots: int


@dataclass(frozen=True, slots=True)
class ResolvedJob:
    """The plan of a job. The digest covers what results depend on."""

    config: JobConfig
    variants: tuple[Variant, ...]
    tasks: tuple[PlannedTask, ...]
    slots: SlotTable
    revisions: tuple[Revision, ...]
    """All of them, the newest last."""
    refused: tuple[ListedTask, ...] = ()
    """Tasks of the dataset that cannot be run here."""

    @property
    def digest(self) -> str:
        """`sha256:` and the digest of the newest revision."""
        return self.revisions[-1].digest

    @property
    def revision(self) -> int:
        """The number of the newest revision, from 1."""
        return len(self.revisions)

    def run_config(self, index: int) -> RunConfig:
        """Return the configuration of a slot's rollout, with its bindings and its seed.

        The agent has them as the variables `BENCHFLOW_BINDING_<NAME>` and `BENCHFLOW_SEED`, and
        the place of a learner store as `BENCHFLOW_LEARNER_DIR`. If the runs have a seed, each
        rollout has the one of its slot, so that attempts at one task differ. A plan that was read
        from its files lacks secrets: complete it by `with_secrets`.
        """
        variant = self.variants[self.slots.place(index)[0]]
        added = {f"BENCHFLOW_BINDING_{k.upper()}": _text(v) for k, v in variant.bindings.items()}
        added["BENCHFLOW_SEED"] = str(self.seed(index))
        if self.config.design.is_sequential:
            added[LEARNER_ENV] = LEARNER_DIR
        agent = variant.run.agent
        agent = agent.model_copy(update={"env": {**added, **agent.env}})
        own = {} if variant.run.seed is None else {"seed": self.seed(index)}
        return variant.run.model_copy(update={"agent": agent, **own})

    def seed(self, index: int) -> int:
        """Return the seed of a slot: below 2**31, and the same for all variants of a pair."""
        slot, design = self.slots[index], self.config.design
        own = [slot.variant] if design.kind == "unpaired" else []
        first = design.seed
        if first is None:
            first = self.variants[self.slots.place(index)[0]].run.seed
        text = json.dumps([first or 0, slot.task, slot.repeat, *own])
        return int.from_bytes(sha256(text.encode()).digest()[:4], "big") >> 1

    def image(self, index: int) -> ImageChoice:
        """Return the image of a slot: of the task's override, the variant, the job, or the task."""
        number, task, _ = self.slots.place(index)
        planned, variant = self.tasks[task], self.variants[number]
        if planned.override.image is not None:
            return ImageChoice(planned.override.image, planned.image_origin)
        if variant.image is not None:
            return ImageChoice(variant.image, variant.image_origin)
        return ImageChoice()

    def effective_task(self, index: int, task: Task) -> Task:
        """Return the slot's task with the image, variables and time limits of the job."""
        override = self.tasks[self.slots.place(index)[1]].override
        return overridden_task(task, self.image(index).image, override)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_tasks(config: JobConfig) -> Dataset:
    """Find the tasks of a job.

    Raises:
        JobConfigError: The configuration does not fit together, or no task was found.
    """
    raise_problems([*dataset_problems(config), *check_config(config)])
    run = resolve_variants(config)[0].run
    return find_dataset(config.dataset, run.adapter_options())


def plan_job(config: JobConfig) -> ResolvedJob:
    """Find the tasks of a job, and resolve it.

    Raises:
        JobConfigError: The configuration does not fit together, or with the tasks.
    """
    return resolve_job(config, find_tasks(config))


def resolve_job(config: JobConfig, dataset: Dataset) -> ResolvedJob:
    """Return the plan of a job. The same input gives the same plan.

    Raises:
        JobConfigError: The configuration does not fit together, or with the tasks.
    """
    raise_problems([*check_config(config), *_task_problems(config, dataset)])
    tasks, seed = list(dataset.tasks), config.design.seed
    if seed is not None:
        tasks.sort(key=lambda task: sha256(f"{seed}:{task.id}".encode()).digest())
    return make_plan(
        config,
        tuple(planned_task(task, config.tasks, dataset.rows) for task in tasks),
        refused=dataset.refused,
    )


def planned_task(
    task: Task, by_key: Mapping[str, TaskOverride], rows: Mapping[str, TaskOverride]
) -> PlannedTask:
    """Return a task of a plan. A table of the job lies over the row of a list."""
    row, own = rows.get(task.id, TaskOverride()), by_key.get(task.id, TaskOverride())
    both = laid_over(row.model_dump(exclude_unset=True), own.model_dump(exclude_unset=True))
    override = TaskOverride.model_validate(both)
    origin = f"tasks.{task.id}.image" if own.image else "dataset row"
    return PlannedTask(
        id=task.id,
        digest=task.digest,
        path=task.path,
        format=task.format,
        memory_mb=task.config.environment.memory_mb,
        override=override,
        image_origin=origin if override.image else "",
    )


def make_plan(
    config: JobConfig,
    tasks: tuple[PlannedTask, ...],
    *,
    places: Sequence[Place] | None = None,
    earlier: tuple[Revision, ...] = (),
    refused: tuple[ListedTask, ...] = (),
) -> ResolvedJob:
    """Return the plan of tasks that fit the configuration: of `places`, or of every slot."""
    variants = resolve_variants(config)
    order = all_places(config.design, len(variants), len(tasks)) if places is None else places
    slots = SlotTable.of([each.id for each in variants], tasks, order)
    digest = digest_of(config.design, variants, tasks, slots)
    newest = Revision(digest=digest, variants=len(variants), tasks=len(tasks), slots=len(slots))
    return ResolvedJob(config, variants, tasks, slots, (*earlier, newest), refused)


def all_places(design: DesignConfig, variants: int, tasks: int) -> Iterator[Place]:
    """Yield every slot in schedule order.

    Each replication comes after the one before. Within it, all variants of a task come together,
    so that a job that stops has complete pairs. If the design is unpaired, all tasks of a variant
    come together.
    """
    for repeat in range(design.replications):
        if design.kind == "unpaired":
            yield from ((v, t, repeat) for v, t in product(range(variants), range(tasks)))
        else:
            yield from ((v, t, repeat) for t, v in product(range(tasks), range(variants)))


def digest_of(
    design: DesignConfig,
    variants: Sequence[Variant],
    tasks: Sequence[PlannedTask],
    slots: SlotTable,
) -> str:
    """Return the digest of all that results depend on: not of names, limits and places."""
    public = [task.id for task in tasks]
    content = {
        "design": design.model_dump(mode="json", exclude={"replications"}),
        "variants": [{"id": each.id, **each.recorded(public)} for each in variants],
        "tasks": [
            task.model_dump(mode="json", include={"id", "digest", "override"}) for task in tasks
        ],
        "slots": [column.tolist() for column in slots.columns],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def _task_problems(config: JobConfig, dataset: Dataset) -> Iterator[Problem]:
    for name in config.tasks:
        if name not in dataset.names:
            hint = did_you_mean(name, dataset.names) or "name a task of the dataset"
            yield Problem(("tasks", name), "the dataset has no such task", hint)
