"""`/api/v1`: the view models of the pages, as JSON."""

from typing import Any

from litestar import Request, Router, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from benchflow_dashboard.fleet.reader import FleetReader
from benchflow_dashboard.index import Index, RunQuery, StepHits, StepQuery, search_steps
from benchflow_dashboard.notes.queries import Annotations, read_annotations
from benchflow_dashboard.pages.failures import FailuresView, failures_view
from benchflow_dashboard.pages.fleet import fleet_json
from benchflow_dashboard.pages.job import JobLine, JobView, job_lines, job_view
from benchflow_dashboard.pages.runs import RunsView, runs_view
from benchflow_dashboard.reports.comparison import CompareQuery, CompareView, compare_view
from benchflow_dashboard.reports.costs import CostQuery, CostsView, costs_view
from benchflow_dashboard.reports.rewards import RewardQuery, RewardsView, rewards_view
from benchflow_dashboard.security.access import limited

from .openapi import (
    ERRORS,
    CompareOperation,
    CostOperation,
    RewardOperation,
    RunQueryOperation,
    StepQueryOperation,
)


@get("/runs", sync_to_thread=True, responses=ERRORS, operation_class=RunQueryOperation)
def list_runs(request: Request[Any, Any, Any], index: NamedDependency[Index]) -> RunsView:
    """Return one page of the list of runs. The parameters are those of `/runs`."""
    query = RunQuery.of(request.query_params)
    with index.read() as session:
        return runs_view(session, query)


@get("/search", sync_to_thread=True, responses=ERRORS, operation_class=StepQueryOperation)
def list_steps(request: Request[Any, Any, Any], index: NamedDependency[Index]) -> StepHits:
    """Return one page of the search over steps. The parameters are those of `/search`."""
    query = StepQuery.of(request.query_params)
    with index.read() as session:
        return search_steps(session, query)


@get("/failures", sync_to_thread=True, responses=ERRORS, operation_class=RunQueryOperation)
def list_failures(request: Request[Any, Any, Any], index: NamedDependency[Index]) -> FailuresView:
    """Return the failures by cause. The parameters are those of `/failures`."""
    query = RunQuery.of(request.query_params)
    with index.read() as session:
        return failures_view(session, query)


@get("/rollouts/{rollout:str}/notes", sync_to_thread=True, responses=ERRORS)
def list_notes(index: NamedDependency[Index], rollout: FromPath[str]) -> Annotations:
    """Return the labels and notes of users on one rollout; none of an unknown rollout."""
    with index.read() as session:
        return read_annotations(session, rollout)


@get("/fleet", sync_to_thread=True, responses=ERRORS)
def get_fleet(fleet: NamedDependency[FleetReader]) -> dict[str, Any]:
    """Return the sandboxes of this machine, what ended runs left, and the queues."""
    return fleet_json(fleet.view())


@get("/jobs", sync_to_thread=True, responses=ERRORS)
def list_jobs(index: NamedDependency[Index]) -> tuple[JobLine, ...]:
    """Return the jobs, the newest first."""
    with index.read() as session:
        return job_lines(session)


@get("/jobs/{job:str}", sync_to_thread=True, responses=ERRORS)
def get_job(index: NamedDependency[Index], job: FromPath[str]) -> JobView:
    """Return one job."""
    view = index.report(("job", job), lambda session: job_view(session, job)).result
    if view is None:
        raise NotFoundException("no job has this name")
    return view


@get(
    "/jobs/{job:str}/compare",
    sync_to_thread=True,
    responses=ERRORS,
    operation_class=CompareOperation,
)
def get_comparison(
    request: Request[Any, Any, Any], index: NamedDependency[Index], job: FromPath[str]
) -> CompareView:
    """Return the comparison of variants. The parameters are those of `/jobs/{job}/compare`."""
    query = CompareQuery.of(request.query_params.multi_items())
    key = ("compare", job, query)
    view = index.report(key, lambda session: compare_view(session, job, query)).result
    if view is None:
        raise NotFoundException("no job has this name")
    return view


@get("/cost", sync_to_thread=True, responses=ERRORS, operation_class=CostOperation)
def list_costs(request: Request[Any, Any, Any], index: NamedDependency[Index]) -> CostsView:
    """Return cost and tokens by group. The parameters are those of `/cost`."""
    query = CostQuery.of(request.query_params)
    return index.report(("cost", query), lambda session: costs_view(session, query)).result


@get("/rewards", sync_to_thread=True, responses=ERRORS, operation_class=RewardOperation)
def list_rewards(request: Request[Any, Any, Any], index: NamedDependency[Index]) -> RewardsView:
    """Return rewards by space and granularity. The parameters are those of `/rewards`."""
    query = RewardQuery.of(request.query_params)
    with index.read() as session:
        return rewards_view(session, query)


API_V1 = Router(
    path="/api/v1",
    guards=[limited],
    route_handlers=[
        list_runs,
        list_steps,
        list_failures,
        list_notes,
        get_fleet,
        list_jobs,
        get_job,
        get_comparison,
        list_costs,
        list_rewards,
    ],
)
