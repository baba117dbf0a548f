"""`/healthz`: whether the server answers, and whether the index follows."""

from litestar import get
from litestar.di import NamedDependency

from benchflow_dashboard.index import Index
from benchflow_dashboard.security.access import PUBLIC


@get("/healthz", include_in_schema=False, opt=PUBLIC)
async def check_health(index: NamedDependency[Index]) -> dict[str, str | bool]:
    """Answer that the server runs. The request does not read the index."""
    is_following = index.watcher.problem is None
    return {"status": "ok" if is_following else "stale", "is_following": is_following}
