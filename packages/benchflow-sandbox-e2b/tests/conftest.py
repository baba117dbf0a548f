"""E2B's SDK against our server over local sandboxes. Nothing here runs on E2B."""

import asyncio

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.e2b import e2b_server

IMAGES = {
    "debian:12": SandboxSpec(env={"FROM_IMAGE": "yes"}),
    "hostile": SandboxSpec(env={"A": "x" * 100_000, "B": "x" * 100_000}),
}
TERMS = CloudTerms(date="2026-11-28", source="a test")
"""Without a rate: our server has none."""


@pytest.fixture
def with_provider():
    """Run an async test against a provider and the server of its account."""

    def run(test, key="e2b_test", **options):
        async def main():
            async with LocalProvider() as local, e2b_server(local, images=IMAGES) as (server, url):
                options.setdefault("terms", TERMS)
                provider = E2bProvider(api_key=key, api_url=url, sandbox_url=url, **options)
                async with provider:
                    return await test(provider, server)

        return asyncio.run(main())

    return run
