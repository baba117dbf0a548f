"""Pages as files: which URLs a bundle may have, their files, and their links from disk."""

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit

from benchflow_contracts import UsageError

from benchflow_dashboard.index import RunQuery
from benchflow_dashboard.tree.query import RolloutQuery

POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"
)
"""No script, no request, nothing from elsewhere."""
_HEAD: Final = (
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    '  <meta name="referrer" content="no-referrer">'
)
# Text of agents is escaped, so each of these tags comes from a template.
_SERVER_ONLY: Final = re.compile(
    r"<form\b.*?</form>\s*|<script\b.*?</script>\s*|<dialog\b.*?</dialog>\s*"
    r"|<noscript\b.*?</noscript>\s*"
    r"|<section\b[^>]*\bdata-server-only\b.*?</section>\s*"
    r"|<button\b[^>]*\bdata-copy\b.*?</button>\s*"
    r"|<meta name=\"htmx-config\"[^\n]*\n\s*",
    re.DOTALL,
)
# The state of the stream differs between two servers.
_LIVE: Final = re.compile(
    r'\s(?:hx-[a-z-]+|sse-[a-z-]+|data-(?:live|version|stamp|seq|refresh|rollout)[a-z-]*)="[^"]*"'
)
_TAG: Final = re.compile(r"<[a-zA-Z][^<>]*>")
_LINK: Final = re.compile(r'\s(href|src)="([^"]*)"')
_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME: Final = 80
_STATIC: Final = "/static/"


@dataclass(frozen=True, slots=True)
class PageUrl:
    """A page that a bundle may have."""

    url: str
    """The path and the query, in one form for equal pages."""
    group: str
    """The id of a rollout; empty for lists."""
    rank: int
    """Pages with a lower number come first: 0 is always there."""

    @property
    def file(self) -> str:
        """The file of the page, relative to the bundle."""
        if self.url == "/":
            return "index.html"
        path, _, query = self.url.partition("?")
        parts = [_file_name(unquote(part)) for part in path.strip("/").split("/")]
        pairs = parse_qsl(query, keep_blank_values=True)
        words = "_".join(f"{name}.{value}" for name, value in pairs)
        return "/".join((*parts, f"{_file_name(words)}.html" if words else "index.html"))


def page_url(link: str, base: str = "/") -> PageUrl | None:
    """Return the page of a link on the page `base`; None if a bundle does not have such pages."""
    parts = urlsplit(urljoin(base, link))
    if parts.scheme or parts.netloc:
        return None
    names = [unquote(part) for part in parts.path.strip("/").split("/")]
    given = dict(parse_qsl(parts.query))
    match names:
        case ["runs"]:
            return _runs(given)
        case ["r", rollout]:
            return _rollout(rollout, given)
        case ["r", rollout, "diff"]:
            return _diff(rollout, given)
        case _:
            return _report(names, given)


def _report(names: Sequence[str], given: Mapping[str, str]) -> PageUrl | None:
    """Return the page of a job, or of all jobs. Its order and its place are those of a server."""
    match names:
        case ["jobs"]:
            return PageUrl("/jobs", "", 0)
        case ["jobs", job]:
            return PageUrl(f"/jobs/{quote(job, safe='')}", "", 0)
        case ["jobs", job, "compare"]:
            return PageUrl(f"/jobs/{quote(job, safe='')}/compare", "", 1)
        case ["failures" | "cost" as name] if given.keys() <= {"job", "boundary", "by"}:
            words = urlencode([(key, value) for key, value in sorted(given.items()) if value])
            return PageUrl(f"/{name}?{words}" if words else f"/{name}", "", 1)
        case _:
            return None


def _runs(given: Mapping[str, str]) -> PageUrl | None:
    try:
        query = RunQuery.of(given)
    except UsageError:
        return None
    filters = query.filters.keys() - {"job"}
    choices = len(filters - {"boundary"}) + (query.sort != RunQuery().sort)
    # Each combination of filters and orders would be a page of its own.
    if query.before or query.q or query.attempts != "current" or choices > 1:
        return None
    words = query.url_query()
    return PageUrl(f"/runs?{words}" if words else "/runs", "", 1 if words else 0)


def _rollout(rollout: str, given: Mapping[str, str]) -> PageUrl | None:
    asked = RolloutQuery.of(given)
    query = RolloutQuery(
        sel=asked.sel, tab=asked.tab, mode=asked.mode, full=asked.full, page=asked.page
    )
    # Folds, hidden parts and marks are choices of a reader: each would be a page of its own.
    if query != replace(asked, listed="") or (query.mode != "value" and query.tab != "steps"):
        return None
    words = urlencode(query.parameters())
    path = f"/r/{quote(rollout, safe='')}"
    return PageUrl(f"{path}?{words}" if words else path, rollout, _rank(query))


def _rank(query: RolloutQuery) -> int:
    if query.full or query.page:
        return 4
    if query.mode != "value":
        return 3
    if query.tab != "steps":
        return 2
    return 0 if query.sel is None else 1


def _diff(rollout: str, given: Mapping[str, str]) -> PageUrl | None:
    names = {name: given[name] for name in ("a", "b") if given.get(name)}
    if len(names) != 2:
        return None
    return PageUrl(f"/r/{quote(rollout, safe='')}/diff?{urlencode(names)}", rollout, 1)


def links_of(html: str) -> list[str]:
    """Return the links of a page as it is after `to_file`, in order."""
    page = _SERVER_ONLY.sub("", html)
    return [
        unescape(match[2])
        for tag in _TAG.findall(page)
        if tag[1] == "a"
        for match in _LINK.finditer(tag)
        if match[1] == "href"
    ]


def to_file(html: str, page: PageUrl, files: Mapping[str, str]) -> str:
    """Return a page for a file: without forms and scripts, with links to the files of a bundle.

    `files` has the file of each page by its URL. A link to another page becomes plain text.
    """
    body = _SERVER_ONLY.sub("", html)
    body = body.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n  {_HEAD}', 1)

    def tag(match: re.Match[str]) -> str:
        text = _LIVE.sub("", match[0])
        return _LINK.sub(lambda link: _link(link, page, files), text)

    return _TAG.sub(tag, body)


def _link(match: re.Match[str], page: PageUrl, files: Mapping[str, str]) -> str:
    name, link = match[1], unescape(match[2])
    if link.startswith("#"):
        return match[0]
    target, _, fragment = link.partition("#")
    file = _target_file(target, page, files)
    if file is None:
        return ""
    if file == page.file:
        return f' {name}="#{escape(fragment)}"' if fragment else ""
    relative = quote(posixpath.relpath(file, posixpath.dirname(page.file) or "."))
    end = f"#{fragment}" if fragment else ""
    return f' {name}="{escape(relative + end)}"'


def _target_file(link: str, page: PageUrl, files: Mapping[str, str]) -> str | None:
    if link.startswith(_STATIC):
        return f"static/{urlsplit(link).path.removeprefix(_STATIC)}"
    if link == "/":
        return "index.html"
    target = page_url(link, page.url)
    return None if target is None else files.get(target.url)


def style_of_bundle(name: str, body: bytes) -> bytes:
    """Return a style sheet whose own links are relative."""
    here = posixpath.dirname(name) or "."

    def relative(match: re.Match[bytes]) -> bytes:
        target = match[1].decode().removeprefix(_STATIC)
        return f'url("{posixpath.relpath(target, here)}")'.encode()

    return re.sub(rb'url\("(/static/[^"?]+)"\)', relative, body)


def _file_name(name: str) -> str:
    """Return a name for a file on any system. Different names stay different."""
    plain = _PLAIN.sub("_", name).strip(".")[:_LONGEST_NAME]
    if plain == name and plain.lower() == name:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain}-{digest}"
