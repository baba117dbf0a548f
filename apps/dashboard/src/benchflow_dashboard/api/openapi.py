"""The OpenAPI description of `/api/v1`, as JSON behind the same login as the API."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import ClassVar, Final

from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    Schema,
    SecurityScheme,
)

from benchflow_dashboard.index import RunQuery, StepQuery
from benchflow_dashboard.index.run_query import LONGEST
from benchflow_dashboard.reports.comparison import CompareQuery
from benchflow_dashboard.reports.costs import CostQuery
from benchflow_dashboard.reports.rewards import RewardQuery

SCHEMA_PATH: Final = "/api/v1/schema"
"""The path below which `openapi.json` is served."""


@dataclass(frozen=True, slots=True)
class ApiProblem:
    """The body of an answer that is not a success."""

    status: int
    detail: str


ERRORS: Final[Mapping[int, ResponseSpec]] = {
    status: ResponseSpec(ApiProblem, generate_examples=False, description=description)
    for status, description in (
        (400, "The query is wrong."),
        (401, "The request has no login and no token."),
        (403, "The user's role does not allow the request."),
        (404, "Nothing has this name."),
        (421, "The Host header does not name this dashboard."),
        (429, "The user or the address sent too many requests."),
        (503, "The data cannot be read now."),
    )
}
"""The answers that each route of the API may give."""


@dataclass
class QueryOperation(Operation):
    """An operation that takes the fields of `query` as parameters, as `query.of` does."""

    query: ClassVar[type[RunQuery | StepQuery | CompareQuery | CostQuery | RewardQuery]]

    def __post_init__(self) -> None:
        """Add the parameters."""
        known: list[Parameter | Reference] = list(self.parameters or [])
        schema = Schema(type=OpenAPIType.STRING, max_length=LONGEST)
        known += [
            Parameter(name=each.metadata.get("name", each.name), param_in="query", schema=schema)
            for each in fields(self.query)
        ]
        self.parameters = known


class RunQueryOperation(QueryOperation):
    """An operation that takes the parameters of the list of runs."""

    query = RunQuery


class CompareOperation(QueryOperation):
    """An operation that takes the parameters of a comparison."""

    query = CompareQuery


class CostOperation(QueryOperation):
    """An operation that takes the parameters of the page of costs."""

    query = CostQuery


class RewardOperation(QueryOperation):
    """An operation that takes the parameters of the page of rewards."""

    query = RewardQuery


class StepQueryOperation(QueryOperation):
    """An operation that takes the parameters of the search."""

    query = StepQuery


def openapi_config() -> OpenAPIConfig:
    """Return the configuration: JSON alone, because each viewer would load scripts from a CDN."""
    schemes: dict[str, SecurityScheme | Reference] = {
        "token": SecurityScheme(type="http", scheme="bearer", description="The token of a user."),
    }
    return OpenAPIConfig(
        title="BenchFlow dashboard",
        version=version("benchflow-dashboard"),
        description="The data of the pages. Without a file of users, no request needs a token.",
        path=SCHEMA_PATH,
        render_plugins=[JsonRenderPlugin(media_type="application/json")],  # type: ignore[arg-type]
        components=Components(security_schemes=schemes),
        security=[{"token": []}],
        use_handler_docstrings=True,
    )
