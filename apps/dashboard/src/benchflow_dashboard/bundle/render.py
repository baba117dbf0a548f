"""Renders the pages of a bundle by the application itself, without a server."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from benchflow_contracts import StoreError
from litestar import Litestar

from .links import PageUrl, links_of, page_url
from .options import BundleOptions

_HOST = "http://127.0.0.1"


@dataclass(slots=True)
class RenderedPages:
    """The pages of a bundle, by their URL."""

    html: dict[str, str] = field(default_factory=dict[str, str])
    urls: dict[str, PageUrl] = field(default_factory=dict[str, PageUrl])
    omitted: Counter[str] = field(default_factory=Counter[str])
    """Pages beyond a limit, by the id of the rollout; empty for lists."""
    failed: dict[str, int] = field(default_factory=dict[str, int])
    """The status of each page that cannot be shown, by its URL."""

    @property
    def files(self) -> dict[str, str]:
        """The file of each page by its URL."""
        return {url: self.urls[url].file for url in self.html}


async def render_pages(
    app: Litestar, first: Iterable[PageUrl], options: BundleOptions
) -> RenderedPages:
    """Render the pages `first` and those that they lead to, within the limits.

    Pages with a lower rank come first, so a limit leaves out the least important ones.

    Raises:
        StoreError: The application failed.
    """
    pages, seen, counts = RenderedPages(), set[str](), Counter[str]()
    queue: list[tuple[int, int, PageUrl]] = []
    order, size = itertools.count(), 0

    def add(page: PageUrl | None) -> None:
        if page is not None and page.url not in seen:
            seen.add(page.url)
            heapq.heappush(queue, (page.rank, next(order), page))

    for page in first:
        add(page)
    transport = httpx.ASGITransport(app=cast("Any", app))
    async with httpx.AsyncClient(transport=transport, base_url=_HOST) as client:
        while queue:
            _, _, page = heapq.heappop(queue)
            is_full = counts[page.group] >= options.pages or size > options.max_mb << 20
            if page.rank and is_full:
                pages.omitted[page.group] += 1
                continue
            html = await _get(client, page, pages)
            if html is None:
                continue
            counts[page.group] += 1
            size += len(html)
            pages.html[page.url], pages.urls[page.url] = html, page
            for link in links_of(html):
                add(page_url(link, page.url))
    return pages


async def _get(client: httpx.AsyncClient, page: PageUrl, pages: RenderedPages) -> str | None:
    answer = await client.get(page.url)
    if answer.status_code == 200:
        return answer.text
    if answer.status_code >= 500:
        raise StoreError(f"cannot render the page {page.url!r}: status {answer.status_code}")
    if answer.status_code != 404:
        pages.failed[page.url] = answer.status_code
    return None
