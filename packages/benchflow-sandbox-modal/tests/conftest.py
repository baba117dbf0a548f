"""Modal's SDK against our server over local sandboxes. Nothing here runs on Modal."""

import asyncio

import pytest
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_modal import ModalProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.modal import TOKEN_ID, TOKEN_SECRET, modal_server

TERMS = CloudTerms(date="2026-11-29", source="a test")
"""Without a rate: our server has none."""


@pytest.fixture
def with_provider(monkeypatch):
    """Run an async test against a provider and the server of its account."""

    def run(test, secret=TOKEN_SECRET, memory=False, **options):
        async def main():
            async with (
                LocalProvider() as local,
                modal_server(local, memory=memory) as (server, url),
            ):
                monkeypatch.setenv("MODAL_SERVER_URL", url)
                options.setdefault("terms", TERMS)
                provider = ModalProvider(token_id=TOKEN_ID, token_secret=secret, **options)
                async with provider:
                    return await test(provider, server)

        return asyncio.run(main())

    return run
