"""Daytona's SDK against our server over local sandboxes. Nothing here runs on Daytona."""

import asyncio

import pytest
from benchflow_sandbox_daytona import DaytonaProvider
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.daytona import DaytonaAccount, daytona_server

TERMS = CloudTerms(date="2026-11-29", source="a test")
"""Without a rate: our server has none."""


@pytest.fixture
def with_provider():
    """Run an async test against a provider and the server of its account."""

    def run(test, key="dtn_test", kind=DaytonaProvider, account=None, **options):
        async def main():
            options.setdefault("terms", TERMS)
            served = DaytonaAccount(**(account or {}))
            async with (
                LocalProvider() as local,
                daytona_server(local, served) as (server, url),
                kind(api_key=key, api_url=url, **options) as provider,
            ):
                return await test(provider, server)

        return asyncio.run(main())

    return run
