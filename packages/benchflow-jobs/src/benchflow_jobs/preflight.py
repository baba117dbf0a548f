"""The checks of a job before anything runs. All problems are found at once."""

import shutil
from collections.abc import Collection, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchflow_contracts import BenchFlowError, SandboxProvider, StoreError, UsageError
from benchflow_contracts.limits import HasCosts, HasMemoryTotal
from benchflow_contracts.open_files import HasOpenFilesNeed
from benchflow_engine.config import RunConfig
from benchflow_engine.descriptors import check_descriptors
from benchflow_engine.planes import check_verifiers, open_provider
from benchflow_engine.preflight import check_agent, check_endpoint

from .attempt_evidence import evidence_of
from .backends import check_backend
from .begin import PlannedJob, plan_of, slots_left
from .hold import check_unlocked
from .options import JobOptions
from .planning import JobConfig, ResolvedJob, variant_plans

_BYTES_PER_ROLLOUT = 45_000
"""40 kB of its own files, and 5 kB in the record: the least that a rollout leaves."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a job."""

    name: str
    error: BenchFlowError | None = None
    """The problem, if the check failed."""
    warning: str = ""
    """A fact that people should know, although the job may run."""


class PreflightError(UsageError):
    """Several checks of a job failed. All of their errors are in `errors`."""

    def __init__(self, errors: Sequence[BenchFlowError], warnings: Sequence[str] = ()) -> None:
        self.errors = tuple(errors)
        lines = (f"{each} ({each.hint})" if each.hint else str(each) for each in errors)
        super().__init__(
            "\n".join([f"{len(errors)} problems of the job, and nothing was started", *lines]),
            hint="; ".join(["correct them all", *warnings]),
        )


class Providers:
    """The sandbox providers of a job. Variants with the same sandbox settings share one."""

    def __init__(self, blocks: AsyncExitStack) -> None:
        self._blocks = blocks
        self._opened: dict[str, SandboxProvider] = {}
        self._of_variants: list[SandboxProvider] = []

    async def open(self, run: RunConfig) -> SandboxProvider:
        """Open the provider of a configuration, or return the one that is open.

        Raises:
            BenchFlowError: The provider cannot create sandboxes here.
        """
        key = run.sandbox.model_dump_json()
        if key not in self._opened:
            provider = await self._blocks.enter_async_context(open_provider(run))
            await provider.ready()
            self._opened[key] = provider
        return self._opened[key]

    async def open_for(self, job: PlannedJob) -> None:
        """Open the providers of all variants. Workers on other hosts open their own.

        Raises:
            BenchFlowError: A provider cannot create sandboxes, or not as many as the job needs.
        """
        added: list[SandboxProvider] = []
        if not job.plan.config.backend.is_local:
            return
        for variant in job.plan.variants[len(self._of_variants) :]:
            provider = await self.open(variant.run)
            check_descriptors(provider, job.plan.config.concurrency.slots)
            added.append(provider)
        self._of_variants += added

    def check_slots(self, slots: int) -> None:
        """Check that this process may open the files of so many rollouts at one time.

        Raises:
            UsageError: They need more open files than the limit.
        """
        for provider in self.opened:
            check_descriptors(provider, slots)

    @property
    def opened(self) -> list[SandboxProvider]:
        """All providers."""
        return list(self._opened.values())

    def cost_usd(self, rollouts: Collection[str]) -> float:
        """Return what the sandboxes of rollouts have cost so far. What is not known is nothing."""
        paid = [each for each in self.opened if isinstance(each, HasCosts)]
        return sum(each.cost_usd(rollout) or 0.0 for each in paid for rollout in rollouts)

    def of(self, variant: int) -> SandboxProvider:
        """Return the provider of a variant, by its number."""
        return self._of_variants[variant]


async def check_job(job: JobConfig | JobOptions) -> list[Check]:
    """Make every check that comes before the first rollout of a job, and create nothing.

    Raises:
        JobConfigError: The configuration does not fit together, or with the tasks.
    """
    planned = plan_of(job)
    settings = planned.plan.config.job
    async with AsyncExitStack() as blocks:
        named = settings.jobs_dir / settings.name if settings.name else None
        return await make_checks(planned, named, Providers(blocks))


async def prepare(
    job: PlannedJob, directory: Path | None, providers: Providers, *, probes: bool = True
) -> None:
    """Check a job, and open the providers of its sandboxes.

    Without `probes`, the model endpoints of the plan are not called: others replace them.

    Raises:
        BenchFlowError: The only check that failed.
        PreflightError: Several checks failed.
    """
    checks = await make_checks(job, directory, providers, probes=probes)
    errors = {str(each.error): each.error for each in checks if each.error is not None}
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise PreflightError(
            list(errors.values()), [each.warning for each in checks if each.warning]
        )
    await providers.open_for(job)


async def make_checks(
    job: PlannedJob, directory: Path | None, providers: Providers, *, probes: bool = True
) -> list[Check]:
    """Make all checks. A job that has a score in every slot needs only agents and providers."""
    plan, checks = job.plan, _CheckLog()
    if plan.refused:
        checks.warn_of("tasks", f"{len(plan.refused)} tasks of the dataset cannot be run here")
    left = len(plan.slots)
    if directory is not None:
        with checks.check("record"):
            left = slots_left(directory, plan)
        with checks.check("lock"):
            check_unlocked(directory)
    for variant in plan.variants:
        with checks.check(_name("agent", variant.id)):
            check_agent(variant.run)
    if left:
        with checks.check("verifiers"):
            check_verifiers([variant.run for variant in plan.variants], job.tasks.values())
    endpoints = {v.run.model.base_url: v for v in plan.variants if v.run.model.base_url}
    for variant in endpoints.values() if left and probes else ():
        with checks.check(_name("model endpoint", variant.id)):
            await check_endpoint(variant.run)
    await _check_workers(plan, providers, checks)
    if left:
        await _check_host(plan, left, directory or plan.config.job.jobs_dir, providers, checks)
    return checks.made


async def _check_workers(plan: ResolvedJob, providers: Providers, checks: "_CheckLog") -> None:
    """Open the sandbox providers here; of a job whose workers are elsewhere, find its backend."""
    evidence = plan.config.evidence
    limit = plan.config.budget.cost_usd
    if limit is not None and any(_has_unknown_cost(each.run) for each in plan.variants):
        text = "a model without model.usd_per_mtok counts as nothing in budget.cost_usd"
        checks.warn_of("cost", text)
    if evidence.url is not None:
        with checks.check("evidence"):
            evidence_of(evidence, Path())
    if not plan.config.backend.is_local:
        with checks.check("backend"):
            check_backend(plan.config)
        return
    for variant in {each.run.sandbox.model_dump_json(): each for each in plan.variants}.values():
        with checks.check(_name("sandbox provider", variant.id)):
            provider = await providers.open(variant.run)
            if limit is not None:
                _check_prices(provider)


def _has_unknown_cost(run: RunConfig) -> bool:
    return run.model.base_url is not None and run.model.usd_per_mtok is None


def _check_prices(provider: SandboxProvider) -> None:
    """Refuse a limit on the cost that sandboxes without a price could pass unseen."""
    if isinstance(provider, HasCosts) and provider.cost_usd("") is None:
        raise UsageError(
            f"the prices of the sandboxes of {provider.name!r} are not known, and the job has a"
            " limit on its cost",
            hint="write them to a file of $BENCHFLOW_CLOUD_TERMS; see the guide about clouds",
        )


async def _check_host(
    plan: ResolvedJob,
    left: int,
    place: Path,
    providers: Providers,
    checks: "_CheckLog",
) -> None:
    """Check that this host, and those of the sandboxes, have room for the slots that are left."""
    at_once = min(plan.config.concurrency.slots, left)
    with checks.check("open files"):
        providers.check_slots(plan.config.concurrency.slots)
    with checks.check("disk"):
        _check_disk(place, left)
    for provider in providers.opened:
        with checks.check("memory"):
            memory = await _memory_of(provider)
            warning = "" if memory is None else _check_memory(plan, at_once, memory)
            if warning:
                checks.warn_of("memory", warning)


@dataclass(slots=True)
class _CheckLog:
    """Collects checks."""

    made: list[Check] = field(default_factory=list[Check])

    @contextmanager
    def check(self, name: str) -> Generator[None]:
        """Record whether the block raises an error of BenchFlow."""
        try:
            yield
        except BenchFlowError as error:
            self.made.append(Check(name, error))
        else:
            if not any(each.name == name for each in self.made):
                self.made.append(Check(name))

    def warn_of(self, name: str, text: str) -> None:
        """Record a check that passed with a warning."""
        self.made.append(Check(name, warning=text))


def _name(check: str, variant: str) -> str:
    return check if variant == "default" else f"{check} of variant {variant}"


def _check_disk(place: Path, slots: int) -> None:
    """Refuse a job that certainly needs more space than its file system has."""
    path = place.absolute()
    nearest = next(each for each in (path, *path.parents) if each.exists())
    try:
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        raise StoreError(f"cannot use {str(nearest)!r}: {error.strerror}") from error
    need = slots * _BYTES_PER_ROLLOUT
    if free < need:
        raise StoreError(
            f"{slots} rollouts need at least {need // 1000} kB below {str(place)!r}, and "
            f"{free // 1000} kB are free",
            hint="free space, or give a --jobs-dir on another file system",
        )


class _Memory(NamedTuple):
    """The memory of a host, in MB."""

    place: str
    total: int
    free: int | None = None
    """`None`: not known."""


async def _memory_of(provider: SandboxProvider) -> _Memory | None:
    """Return the memory of the host of a provider's sandboxes, `None` if it is not known."""
    total, free = _memory_mb("MemTotal"), _memory_mb("MemAvailable")
    if isinstance(provider, HasMemoryTotal):
        # An engine behind a socket of this host may run in another machine.
        there = await provider.memory_total_mb()
        if there and there != total:
            return _Memory(f"the host of the sandboxes of {provider.name!r}", there)
    # A provider of another host does not state how many files of this process it opens.
    is_here = isinstance(provider, HasOpenFilesNeed)
    return _Memory("this host", total, free) if is_here else None


def _check_memory(plan: ResolvedJob, at_once: int, memory: _Memory) -> str:
    """Compare the memory limits of the rollouts that run at once with the memory of a host.

    Return a warning if they fit only into memory that is in use now, else an empty string. A
    `concurrency.memory_mb` of the job is the operator's own statement, and replaces this check.

    Raises:
        UsageError: The limits together are above the total of the host.
    """
    each = max(variant.needs.get("memory_mb", 0) for variant in variant_plans(plan))
    # One rollout may have a limit above the total: a limit is not a reservation.
    if plan.config.concurrency.memory_mb is not None or not each or at_once < 2:
        return ""
    need, total, free = each * at_once, memory.total, memory.free
    if need > total:
        raise UsageError(
            f"{at_once} rollouts at one time may use {need} MB of memory ({each} MB each), and "
            f"{memory.place} has {total} MB",
            hint=f"use --concurrency {max(total // each, 1)} or less, or set concurrency.memory_mb "
            "in the file of the job",
        )
    if free is None or need <= free:
        return ""
    return f"the rollouts may use {need} MB of memory, and {free} MB are free"


def _memory_mb(name: str) -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{name}:"))
