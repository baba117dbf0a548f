"""Finds the pages of a dashboard as a reader without JavaScript does: by their links."""

import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urldefrag, urljoin, urlsplit

from benchflow_dashboard.app import PAGES

_DISTINCT = ("tab", "mode", "by")
"""Parameters whose values lead to views that differ; other values change the rows only."""
_NOT_PAGES = ("/static/", "/api/", "/metrics", "/healthz", "/v1/", "/export/", "/login/oidc")


@dataclass(frozen=True, slots=True)
class Crawl:
    """What was found from the start page on."""

    pages: list[str] = field(default_factory=list)
    """URLs relative to the server: together they have each route and each parameter."""
    broken: dict[str, int] = field(default_factory=dict)
    """The URLs that did not answer with 200, and their status."""
    routes: set[str] = field(default_factory=set)
    """The routes of `PAGES` that were reached."""


def page_routes() -> dict[str, re.Pattern[str]]:
    """Return each route of a page that GET shows, with the pattern of its URLs."""
    paths = {
        path if path.startswith("/") else f"/{path}"
        for handler in PAGES
        if "GET" in getattr(handler, "http_methods", ())
        for path in getattr(handler, "paths", ())
    }
    pages = (path for path in paths if not path.startswith(_NOT_PAGES))
    return {path: re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path) + "$") for path in pages}


def crawl(url: str, starts: tuple[str, ...] = ("/", "/help", "/login")) -> Crawl:
    """Follow the links that have a route or a parameter which no earlier link had."""
    found, routes = Crawl(), page_routes()
    waiting, seen = list(starts), set[str]()
    while waiting:
        path = waiting.pop(0)
        features = _features(path, routes)
        if features <= seen:
            continue
        seen |= features
        try:
            with urllib.request.urlopen(url + path, timeout=120) as response:
                text, content = (
                    response.read().decode(errors="replace"),
                    response.headers["Content-Type"],
                )
        except urllib.error.HTTPError as error:
            found.broken[path] = error.code
            error.close()
            continue
        found.routes.update(name for name, at in routes.items() if at.fullmatch(_path(path)))
        if "text/html" in content:
            found.pages.append(path)
            waiting += _links(text, path)
    return found


def _path(url: str) -> str:
    return urlsplit(url).path


def _features(url: str, routes: dict[str, re.Pattern[str]]) -> set[str]:
    """Return the route with each of its parameters; nothing outside of the pages."""
    parts = urlsplit(url)
    if parts.netloc or parts.scheme or parts.path.startswith(_NOT_PAGES):
        return set()
    route = next((name for name, at in routes.items() if at.fullmatch(parts.path)), parts.path)
    query = parse_qsl(parts.query, keep_blank_values=True)
    return {route} | {f"{route} {n}={v}" if n in _DISTINCT else f"{route} {n}" for n, v in query}


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href") if tag == "a" else None
        if target:
            self.found.append(target)


def _links(text: str, path: str) -> list[str]:
    parser = _Links()
    parser.feed(text)
    return [urldefrag(urljoin(path, link)).url for link in parser.found]
