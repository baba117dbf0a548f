"""E2B's SDK against our server."""

from contextlib import asynccontextmanager
from types import MappingProxyType

from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.e2b import e2b_server

TERMS = CloudTerms(date="2026-11-28", source="a test")
"""Without a rate: our server has none."""


@asynccontextmanager
async def account(local, images, outside=MappingProxyType({})):
    async with (
        e2b_server(local, images=images, outside=outside) as (server, url),
        E2bProvider(api_key="e2b_test", api_url=url, sandbox_url=url, terms=TERMS) as provider,
    ):
        yield provider, server
