"""Add replications, tasks and variants to a plan."""

from collections.abc import Iterator, Mapping, Sequence

from benchflow_contracts import Task

from .job_config import JobConfig, TaskOverride, VariantConfig
from .job_file import check_config
from .problems import Problem, raise_problems
from .resolved_job import ResolvedJob, all_places, make_plan, planned_task
from .variants import all_variants


def extend(
    plan: ResolvedJob,
    *,
    replications: int | None = None,
    tasks: Sequence[Task] = (),
    variants: Sequence[VariantConfig] = (),
    overrides: Mapping[str, TaskOverride] | None = None,
) -> ResolvedJob:
    """Return the plan with more slots, under a new revision.

    Slots of `plan` keep their indexes. New ones come at the end, in schedule order. What the plan
    has already is not added again, so that a repeated call returns the same plan.

    Args:
        plan: The plan to extend.
        replications: The new number of replications in all (default: as before).
        tasks: More tasks. Their values are those of `overrides`.
        variants: More variants.
        overrides: Values for the new tasks, by id.

    Raises:
        JobConfigError: The plan has another task or variant of the same name, or more replications.
    """
    problems = [*_conflicts(plan, replications, tasks, variants)]
    known = {task.id for task in plan.tasks}
    ids = {each.id for each in plan.variants}
    more = tuple(each for each in variants if each.id not in ids)
    new = {task.id: task for task in tasks if task.id not in known}
    design = plan.config.design.model_copy(
        update={"replications": replications or plan.config.design.replications}
    )
    config = _with_variants(plan.config, more).model_copy(
        update={"design": design, "tasks": {**plan.config.tasks, **(overrides or {})}}
    )
    raise_problems([*problems, *check_config(config)])
    added = tuple(planned_task(task, config.tasks, {}) for task in new.values())
    every = (*plan.tasks, *added)
    old = set(plan.slots.places())
    order = all_places(design, len(plan.variants) + len(more), len(every))
    places = [*plan.slots.places(), *(place for place in order if place not in old)]
    if len(places) == len(plan.slots):
        return plan
    return make_plan(config, every, places=places, earlier=plan.revisions, refused=plan.refused)


def _with_variants(config: JobConfig, more: tuple[VariantConfig, ...]) -> JobConfig:
    if not more:
        return config
    # The default variant has to be named beside others.
    before = config.variants if config.sweep else tuple(all_variants(config))
    return config.model_copy(update={"variants": (*before, *more)})


def _conflicts(
    plan: ResolvedJob,
    replications: int | None,
    tasks: Sequence[Task],
    variants: Sequence[VariantConfig],
) -> Iterator[Problem]:
    before = plan.config.design.replications
    if replications is not None and replications < before:
        place = ("design", "replications")
        reason = f"the job has {before} already, and extend only adds"
        yield Problem(place, reason, f"give {before} or more", replications)
    digests = {task.id: task.digest for task in plan.tasks}
    for task in tasks:
        if digests.get(task.id, task.digest) != task.digest:
            yield Problem(
                ("tasks", task.id), "the task changed since the job was planned", "start a new job"
            )
    configs = {each.id: each for each in all_variants(plan.config)}
    for each in variants:
        if configs.get(each.id, each) != each:
            reason = "the job has another variant of this name"
            yield Problem(("variants", each.id), reason, "choose another id")
