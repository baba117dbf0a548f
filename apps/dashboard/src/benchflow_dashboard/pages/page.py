"""What each page has: the frame, the theme, and the command that prints the same data."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from litestar import Request, get, post
from litestar.datastructures import Cookie
from litestar.exceptions import NotFoundException
from litestar.response import Redirect, Template

from benchflow_dashboard.index import Index, RolloutEntry
from benchflow_dashboard.security.access import access_of, checked_form
from benchflow_dashboard.settings import DashboardSettings

PageRequest = Request[Any, Any, Any]
Theme = Literal["light", "dark"]

NAVIGATION: Final = (
    ("runs", "Runs", "/runs", "r"),
    ("jobs", "Jobs", "/jobs", "j"),
    ("failures", "Failures", "/failures", "f"),
    ("rewards", "Rewards", "/rewards", "w"),
    ("cost", "Cost", "/cost", "c"),
    ("search", "Search", "/search", "s"),
    ("monitor", "Monitor", "/monitor", "m"),
    ("alerts", "Alerts", "/alerts", "a"),
    ("fleet", "Fleet", "/fleet", "l"),
)
"""The links of the header: section, text, URL and the key after `g`. A new page adds its line."""
_THEMES: Final = ("light", "dark", "auto")
AGES_SEC: Final = 15
"""How often a page reads itself so that its ages stay true."""
REPORT_REST_SEC: Final = 2
"""The least seconds between two reads of a page that counts over many runs."""
_REPORT_SHARE: Final = 10
_YEAR: Final = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class LivePage:
    """What makes a page read itself again: a change of a topic, or an event of a rollout."""

    topic: str = ""
    """`runs` or `monitor`."""
    rollout: str = ""
    seq: int = -1
    """The last event of `rollout` that the page shows."""
    stamp: str = ""
    refresh_sec: int = 0
    """The seconds after which the page also reads itself, because it shows ages. 0: never."""
    rest_sec: int = 0
    """The least seconds between two reads, of a page that costs the server more than others."""


def render(
    request: PageRequest,
    template: str,
    view: object,
    *,
    title: str,
    section: str = "",
    cli: Sequence[str] = (),
    fragment: str | None = None,
    context: Mapping[str, object] | None = None,
) -> Template:
    """Return the page `template` with `view`, or only `fragment` for a request of htmx.

    `section` is the key of the link in the header. `cli` has the words of the command that prints
    the same data. `context["live"]` is a `LivePage` if scripts keep the page up to date.
    """
    is_fragment = fragment is not None and "hx-request" in request.headers
    theme = request.cookies.get("theme")
    return Template(
        template_name=fragment if is_fragment and fragment else template,
        context={
            "view": view,
            "title": title,
            "section": section,
            "cli": shlex.join(cli),
            "theme": theme if theme in {"light", "dark"} else None,
            "here_url": _here(request),
            "navigation": NAVIGATION,
            "csrf": access_of(request).csrf(request),
            "user": access_of(request).user(request),
            "has_login": access_of(request).has_auth,
            "live": None,
            "live_versions": request.state.get("live_versions", {}),
            **(context or {}),
        },
        headers={"Vary": "HX-Request, Live-Drawing, Cookie"},
    )


def report_rest_sec(seconds: float) -> int:
    """Return the least seconds between two reads of a report that took `seconds`.

    One open page costs at most a tenth of a core.
    """
    return max(REPORT_REST_SEC, math.ceil(_REPORT_SHARE * seconds))


def jobs_dir_words(settings: DashboardSettings) -> tuple[str, ...]:
    """Return the option of a command that reads the same directory; none for the default."""
    is_default = settings.jobs_dir == DashboardSettings().jobs_dir
    return () if is_default else ("--jobs-dir", str(settings.jobs_dir))


def find_one(index: Index, prefix: str, job: str | None = None) -> RolloutEntry:
    """Return the only rollout whose id is `prefix` or begins with `prefix`.

    Of rollouts with the same id, as in a copy of a job, the newest is returned; `job` chooses.

    Raises:
        NotFoundException: No rollout matches, or ids of several rollouts begin with `prefix`.
    """
    found = index.find(prefix, job)
    if found and len({run.id for run in found}) == 1:
        return found[0]
    names = ", ".join(sorted({run.id for run in found})[:5])
    reason = f"several rollouts begin with this id: {names}" if found else "no rollout has this id"
    raise NotFoundException(reason)


def _here(request: PageRequest) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


@get("/", include_in_schema=False)
async def go_to_runs() -> Redirect:
    """Redirect the root to the list of runs."""
    return Redirect("/runs")


@get("/help", include_in_schema=False)
async def show_help(request: PageRequest) -> Template:
    """Show the keyboard map as a page, for a browser without JavaScript."""
    return render(request, "help.html", None, title="Help")


@post("/theme", include_in_schema=False, status_code=303)
async def set_theme(request: PageRequest) -> Redirect:
    """Store the theme in a cookie, and return to the page."""
    form = await checked_form(request)
    theme, back = str(form.get("theme", "")), str(form.get("back", ""))
    cookie = Cookie(
        key="theme",
        value=theme if theme in _THEMES else "auto",
        max_age=_YEAR,
        samesite="strict",
        httponly=True,
    )
    return Redirect(local_path(back), status_code=303, cookies=[cookie])


def local_path(path: str) -> str:
    """Return `path` if it leads to this dashboard, else the start page."""
    is_local = path.startswith("/") and path[1:2] not in {"/", "\\"} and path.isprintable()
    return path if is_local else "/"
