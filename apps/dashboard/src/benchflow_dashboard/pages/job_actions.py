"""Actions on a job: `/jobs/{job}/act/{action}`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import BenchFlowError, Branched, BranchRecord, StoreError
from litestar import get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.actions.estimate import estimate, newest_fork
from benchflow_dashboard.actions.job_actions import (
    JOB_ACTIONS,
    TITLES,
    JobAction,
    JobChoices,
    check_state,
    command_of,
    find_place,
    give_order,
    read_state,
    resume_words,
)
from benchflow_dashboard.actions.job_forecast import Forecast, ForecastFacts, forecast
from benchflow_dashboard.actions.launch import start_command
from benchflow_dashboard.actions.records import ActionRecord, ActionStore
from benchflow_dashboard.index import Index, read_jobs
from benchflow_dashboard.rollouts import RolloutCache
from benchflow_dashboard.security.access import checked_form, limited_action
from benchflow_dashboard.settings import DashboardSettings

from .actions import acting, carry_out, new_record
from .job import job_url
from .page import PageRequest, render


@dataclass(frozen=True, slots=True)
class JobConfirmation:
    """The page before an action on a job."""

    job: str
    action: JobAction
    title: str
    forecast: Forecast
    problem: str
    """Why the action is not possible now."""
    hint: str
    slots: int | None
    back_url: str

    @classmethod
    def of(
        cls, index: Index, rollouts: RolloutCache, directory: Path, action: JobAction
    ) -> "JobConfirmation":
        """Return the page of an action on the job in `directory`."""
        job = directory.name
        place, state = find_place(directory), read_state(directory)
        with index.read() as session:
            means, forked = estimate(session, job), newest_fork(session, job)
        fork = None if forked is None else _last_fork(rollouts, directory / forked)
        facts = ForecastFacts.read(place, state, means, fork)
        problem = hint = ""
        try:
            check_state(action, place, state)
        except BenchFlowError as error:
            problem, hint = str(error), error.hint
        return cls(
            job=job,
            action=action,
            title=TITLES[action],
            forecast=forecast(action, facts),
            problem=problem,
            hint=hint,
            slots=facts.slots,
            back_url=job_url(job),
        )


# Not `sync_to_thread`: Litestar wraps such a handler twice if its path has two handlers.
@get("/jobs/{job:str}/act/{action:str}", include_in_schema=False, guards=[acting])
async def confirm_job_action(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    settings: NamedDependency[DashboardSettings],
    job: FromPath[str],
    action: FromPath[str],
) -> Template:
    """Show what an action on a job would do, and the form that does it."""
    name = _action(action)
    directory = await asyncio.to_thread(_directory, index, settings, job)
    view = await asyncio.to_thread(JobConfirmation.of, index, rollouts, directory, name)
    return render(
        request,
        "action_job.html",
        view,
        title=f"{view.title}: {job}",
        section="jobs",
        cli=command_of(name, directory, JobChoices()),
    )


@post(
    "/jobs/{job:str}/act/{action:str}",
    include_in_schema=False,
    guards=[acting, limited_action],
    status_code=303,
)
async def act_on_job(
    request: PageRequest,
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
    actions: NamedDependency[ActionStore],
    job: FromPath[str],
    action: FromPath[str],
) -> Redirect:
    """Carry out an action on a job, and redirect to its result."""
    name = _action(action)
    form = await checked_form(request)
    directory = await asyncio.to_thread(_directory, index, settings, job)
    choices = JobChoices.of(name, dict(form))
    record = new_record(
        request, actions, action=name, job=job, target=job, back=job_url(job)
    ).model_copy(update={"command": command_of(name, directory, choices)})

    def act() -> ActionRecord:
        place = find_place(directory)
        check_state(name, place, read_state(directory))
        if place.process is None:
            return start_command(actions, record, resume_words(directory))
        message = give_order(name, directory, choices, record.user)
        return record.model_copy(update={"outcome": "accepted", "message": message})

    return await carry_out(request, actions, record, act)


def _last_fork(rollouts: RolloutCache, directory: Path) -> BranchRecord | None:
    try:
        loaded = rollouts.load(directory)
    except StoreError:
        return None
    events = loaded.stored.log.events
    return next((e.record for e in reversed(events) if isinstance(e, Branched)), None)


def _action(name: str) -> JobAction:
    for action in JOB_ACTIONS:
        if action == name:
            return action
    raise NotFoundException("a job does not have this action")


def _directory(index: Index, settings: DashboardSettings, job: str) -> Path:
    with index.read() as session:
        # Only a name that the index found is part of a path.
        if not read_jobs(session, job):
            raise NotFoundException("no job has this name")
    return settings.jobs_dir.resolve() / job
