"""`/healthz`: whether the server answers."""

from litestar import get


@get("/healthz", include_in_schema=False)
async def check_health() -> dict[str, str]:
    """Answer that the server runs. A request that never reads the index."""
    return {"status": "ok"}
