"""Daytona's SDK against our server."""

from contextlib import asynccontextmanager
from types import MappingProxyType

from benchflow_sandbox_daytona import DaytonaProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.daytona import DaytonaAccount, daytona_server

TERMS = CloudTerms(date="2026-11-29", source="a test")
"""Without a rate: our server has none."""


@asynccontextmanager
async def account(local, images, outside=MappingProxyType({})):
    async with (
        daytona_server(local, DaytonaAccount(images=images, outside=outside)) as (server, url),
        DaytonaProvider(api_key="dtn_test", api_url=url, terms=TERMS) as provider,
    ):
        yield provider, server
