"""E2B's SDK against our server over local sandboxes. Nothing here runs on E2B."""

import asyncio

import pytest
from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.e2b import e2b_server


@pytest.fixture
def with_provider():
    """Run an async test against a provider and the server of its account."""

    def run(test, key="e2b_test", **options):
        async def main():
            async with LocalProvider() as local, e2b_server(local) as (server, url):
                provider = E2bProvider(api_key=key, api_url=url, sandbox_url=url, **options)
                async with provider:
                    return await test(provider, server)

        return asyncio.run(main())

    return run
