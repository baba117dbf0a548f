"""Modal's SDK against our server."""

import os
from contextlib import asynccontextmanager
from types import MappingProxyType
from unittest import mock

from benchflow_sandbox_modal import ModalProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.modal import TOKEN_ID, TOKEN_SECRET, modal_server

TERMS = CloudTerms(date="2026-11-29", source="a test")


@asynccontextmanager
async def account(local, images, outside=MappingProxyType({})):
    async with modal_server(local, images=images, outside=outside) as (server, url):
        with mock.patch.dict(os.environ, {"MODAL_SERVER_URL": url}):
            async with ModalProvider(
                token_id=TOKEN_ID, token_secret=TOKEN_SECRET, terms=TERMS
            ) as provider:
                yield provider, server
