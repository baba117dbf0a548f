"""Views that a user has saved: names and queries, in a cookie."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from benchflow_contracts import UsageError
from litestar import post
from litestar.datastructures import Cookie
from litestar.response import Redirect

from benchflow_dashboard.index import RunQuery
from benchflow_dashboard.security.access import checked_form

from .page import PageRequest, local_path

_COOKIE: Final = "views"
_MOST: Final = 12
_NAME: Final = 40
_BYTES: Final = 3_500
"""Browsers keep cookies of up to 4,096 bytes."""
_YEAR: Final = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class SavedView:
    """A query of the list of runs, with a name."""

    name: str
    query_url: str
    """The query string of `/runs`."""


def saved_views(request: PageRequest) -> tuple[SavedView, ...]:
    """Return the views in the cookie of a request, or nothing if the cookie is invalid."""
    cookie = request.cookies.get(_COOKIE, "")
    try:
        pairs: Any = json.loads(base64.urlsafe_b64decode(cookie)) if cookie else []
        return tuple(_view(str(name), str(query)) for name, query in pairs[:_MOST])
    except (ValueError, TypeError, LookupError, RecursionError, UsageError):
        return ()


def _view(name: str, query: str) -> SavedView:
    # Through the query, so that a link has nothing else.
    return SavedView(name.strip()[:_NAME], RunQuery.of(dict(parse_qsl(query))).url_query())


@post("/views", include_in_schema=False, status_code=303)
async def save_view(request: PageRequest) -> Redirect:
    """Save a view as `name`, or delete the view whose name is `delete`."""
    form = await checked_form(request)
    view = _view(str(form.get("name", "")), str(form.get("query", "")))
    deleted = form.get("delete")
    # The button of a view deletes that view, whatever the field for a new name holds.
    others = [each for each in saved_views(request) if each.name != (deleted or view.name)]
    views = others if deleted or not view.name else [*others, view][-_MOST:]
    back = local_path(f"/runs?{view.query_url}" if view.query_url else "/runs")
    return Redirect(back, status_code=303, cookies=[_cookie(views)])


def _cookie(views: Sequence[SavedView]) -> Cookie:
    rest = list(views)
    while True:
        body = json.dumps([[each.name, each.query_url] for each in rest]).encode()
        value = base64.urlsafe_b64encode(body).decode()
        if len(value) <= _BYTES or not rest:
            break
        rest.pop(0)
    return Cookie(key=_COOKIE, value=value, max_age=_YEAR, samesite="strict", httponly=True)
