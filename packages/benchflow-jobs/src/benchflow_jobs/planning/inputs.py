"""What the scheduler, the record database and `bench eval create` exchange with a plan."""

from benchflow_engine.config import RunConfig
from benchflow_store.database import PlanRevision

from benchflow_jobs.options import JobOptions
from benchflow_jobs.scheduling import Policy, VariantPlan

from .job_config import JobConfig
from .resolved_job import ResolvedJob
from .variants import tables_of


def config_of(options: JobOptions) -> JobConfig:
    """Return the configuration of a job that is described by options."""
    return JobConfig.model_validate(
        {
            "job": {"jobs_dir": options.jobs_dir, "name": options.job_name},
            "dataset": {
                "paths": (str(options.tasks_dir),),
                "name": options.dataset,
                "limit": options.max_tasks,
                "include": options.include,
                "exclude": options.exclude,
            },
            "design": {"replications": options.repeats},
            "run": {"tables": tables_of(options.run)},
            "concurrency": {"slots": options.concurrency},
            "retry": {"retries": options.retries},
            "budget": {"cost_usd": options.max_cost},
        }
    )


def policy_of(config: JobConfig) -> Policy:
    """Return when the scheduler tries again, gives up and pauses."""
    return Policy(
        retries=config.retry.retries,
        pauses=config.retry.pauses_sec,
        max_attempts=config.retry.max_attempts,
        deadline_sec=config.budget.rollout_sec,
        break_variant_after=config.breaker.variant_after,
        break_job_after=config.breaker.job_after,
        prune_after=config.pruning.consecutive_failures,
    )


def resource_limits(config: JobConfig) -> dict[str, int]:
    """Return what may be in use at once, by resource. A resource without a limit is left out."""
    limits = config.concurrency.model_dump(include={"slots", "builds", "memory_mb"})
    return {name: limit for name, limit in limits.items() if limit is not None}


def variant_plans(plan: ResolvedJob) -> list[VariantPlan]:
    """Return what the scheduler has to know of each variant, in the order of their numbers."""
    tasks_mb = max((task.memory_mb or 0 for task in plan.tasks), default=0)
    return [
        VariantPlan(
            name=each.id,
            needs=_needs(each.run, tasks_mb),
            endpoint=each.run.model.base_url,
            is_sequential=plan.config.design.is_sequential,
        )
        for each in plan.variants
    ]


def _needs(run: RunConfig, tasks_mb: int) -> dict[str, int]:
    own = None if run.limits is None else run.limits.memory_mb
    memory_mb = own or tasks_mb
    return {"slots": 1, "memory_mb": memory_mb} if memory_mb else {"slots": 1}


def plan_revision(plan: ResolvedJob) -> PlanRevision:
    """Return what the record database keeps of the newest revision, beside `plan.slots`."""
    public = [task.id for task in plan.tasks]
    design = plan.config.design
    return PlanRevision(
        config_digest=plan.digest,
        design=design.kind,
        baseline=design.baseline or plan.variants[0].id,
        variants={each.id: each.recorded(public) for each in plan.variants},
        config={
            "design": design.model_dump(mode="json"),
            "overrides": {
                task.id: task.override.model_dump(mode="json", exclude_unset=True)
                for task in plan.tasks
                if task.override.model_fields_set
            },
        },
    )
