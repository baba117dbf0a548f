"""What our server with E2B's API refuses, as E2B does."""

import asyncio

import httpx
import pytest
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.e2b import e2b_server

KEY = {"x-api-key": "e2b_test"}


@pytest.fixture
def ask():
    """Send requests to a server of its own; return the answers."""

    def run(*requests):
        async def main():
            async with (
                LocalProvider() as local,
                e2b_server(local) as (server, url),
                httpx.AsyncClient(base_url=url) as client,
            ):
                answers = [await client.request(*words, **more) for words, more in requests]
                return [(each.status_code, each.text) for each in answers], server.creations

        return asyncio.run(main())

    return run


CREATE = ("POST", "/v2/sandboxes")


def test_a_call_without_the_key_of_the_account_is_refused(ask):
    ((status, _),), creations = ask((CREATE, {"json": {"templateID": "base"}}))
    assert (status, creations) == (401, 0)


def test_a_field_that_the_server_does_not_know_is_refused(ask):
    body = {"templateID": "base", "gpu": 1}
    ((status, text),), creations = ask((CREATE, {"json": body, "headers": KEY}))
    assert (status, creations) == (400, 0)
    assert "unknown fields: ['gpu']" in text


def test_an_unknown_template_sandbox_or_route_is_refused(ask):
    answers, creations = ask(
        (CREATE, {"json": {"templateID": "none"}, "headers": KEY}),
        (("DELETE", "/sandboxes/i1"), {"headers": KEY}),
        (("POST", "/sandboxes/i1/timeout"), {"json": {"timeout": 5}, "headers": KEY}),
        (("GET", "/v2/templates"), {"headers": KEY}),
        (("GET", "/health"), {"headers": {"e2b-sandbox-id": "i1"}}),
    )
    assert [status for status, _ in answers] == [404, 404, 404, 501, 502]
    assert creations == 0


def test_one_idempotency_key_makes_one_sandbox(ask):
    call = (CREATE, {"json": {"templateID": "base"}, "headers": {**KEY, "idempotency-key": "k"}})
    answers, creations = ask(call, call)
    assert [status for status, _ in answers] == [201, 201]
    assert answers[0] == answers[1]
    assert creations == 1
