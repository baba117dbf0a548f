"""Limits on the answers of a cloud's server, for SDKs that use aiohttp.

Only the packages of these SDKs depend on aiohttp, so their code imports this module by its name.
"""

from typing import Any, Final

import aiohttp

MOST_BYTES: Final = 1 << 26
"""The limit of an answer after it was unpacked. A list of some thousand pods has half of it."""


class _LimitedResponse(aiohttp.ClientResponse):
    async def read(self) -> bytes:
        """Read the answer.

        Raises:
            ValueError: It is larger than `MOST_BYTES`.
        """
        if self._body is None:
            try:
                self._body = await self._limited_body()
            except BaseException:
                self.close()
                raise
        return await super().read()

    async def _limited_body(self) -> bytes:
        body = bytearray()
        async for piece in self.content.iter_any():
            body += piece
            if len(body) > MOST_BYTES:
                raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
        return bytes(body)


async def _refuse_redirect(_session: object, _context: object, params: Any) -> None:  # noqa: ANN401
    # A sandbox could answer for the cloud, and lead the runner to servers of its own network.
    params.response.close()
    location = params.response.headers.get("Location", "")
    raise ValueError(f"the server leads to another address: {location[:200]!r}")


def limited(session: aiohttp.ClientSession, **options: Any) -> aiohttp.ClientSession:  # noqa: ANN401
    """Replace the session of an SDK by one that follows no redirect and reads no endless answer.

    Both are a `ValueError` of the call. The new session has the connections of the old one.
    """
    connector = session.connector
    session.detach()
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(
        connector=connector,
        response_class=_LimitedResponse,
        trace_configs=[trace],
        trust_env=True,
        **options,
    )


def with_limits(client: Any, **options: Any) -> Any:  # noqa: ANN401 - a generated client
    """Limit the session of a client by the OpenAPI Generator; see `limited`. Return the client."""
    client.rest_client.pool_manager = limited(client.rest_client.pool_manager, **options)
    return client
