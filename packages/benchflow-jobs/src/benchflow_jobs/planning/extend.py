"""Add replications, tasks and variants to a plan."""

from collections.abc import Iterator, Mapping, Sequence

from benchflow_contracts import Task
from benchflow_engine.task_override import TaskOverride

from .job_config import JobConfig, VariantConfig
from .job_file import check_config
from .problems import Problem, did_you_mean, raise_problems
from .resolved_job import ResolvedJob, all_places, make_plan, planned_task
from .variants import all_variants, resolve_variant


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
        JobConfigError: The plan has another task or variant of the same name, or more replications;
            or an override is not for a new task.
    """
    given, values = {task.id: task for task in tasks}, overrides or {}
    problems = [*_conflicts(plan, replications, given, variants, values)]
    known = {task.id for task in plan.tasks}
    ids = {each.id for each in plan.variants}
    more = tuple(each for each in variants if each.id not in ids)
    new = [task for task in given.values() if task.id not in known]
    design = plan.config.design.model_copy(
        update={"replications": replications or plan.config.design.replications}
    )
    config = _with_variants(plan.config, more).model_copy(
        update={"design": design, "tasks": {**plan.config.tasks, **values}}
    )
    raise_problems([*problems, *check_config(config)])
    added = tuple(planned_task(task, config.tasks, {}) for task in new)
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
    tasks: Mapping[str, Task],
    variants: Sequence[VariantConfig],
    overrides: Mapping[str, TaskOverride],
) -> Iterator[Problem]:
    before = plan.config.design.replications
    if replications is not None and replications < before:
        place = ("design", "replications")
        reason = f"the job has {before} already, and extend only adds"
        yield Problem(place, reason, f"give {before} or more", replications)
    for planned in plan.tasks:
        task, override = tasks.get(planned.id), overrides.get(planned.id, planned.override)
        if override != planned.override or (task and task.digest != planned.digest):
            reason = "the job has another task of this name, or with other values"
            yield Problem(("tasks", planned.id), reason, "start a new job")
    for name in sorted(overrides.keys() - tasks.keys()):
        hint = did_you_mean(name, tasks) or "extend changes no task of the job"
        yield Problem(("tasks", name), "it is not one of the new tasks", hint)
    public = [task.id for task in plan.tasks]
    known = {each.id: each for each in plan.variants}
    for each in variants:
        if each.id not in known:
            continue
        # Secrets are masked in a plan that was read from its files.
        new = resolve_variant(plan.config.run, each).recorded(public)
        if new != known[each.id].recorded(public):
            reason = "the job has another variant of this name"
            yield Problem(("variants", each.id), reason, "choose another id")
