"""What our server with E2B's API refuses, as E2B does."""

import asyncio

import httpx
import pytest
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.e2b import e2b_server
from e2b import AsyncSandbox, SandboxException

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
        (("GET", "/templates/aliases/none"), {"headers": KEY}),
        (("GET", f"/templates/none/files/{'0' * 64}"), {"headers": KEY}),
        (("GET", "/templates/none/builds/none/status"), {"headers": KEY}),
        (("GET", "/health"), {"headers": {"e2b-sandbox-id": "i1"}}),
    )
    assert [status for status, _ in answers] == [404, 404, 404, 501, 404, 404, 404, 502]
    assert creations == 0


def test_one_idempotency_key_makes_one_sandbox(ask):
    call = (CREATE, {"json": {"templateID": "base"}, "headers": {**KEY, "idempotency-key": "k"}})
    answers, creations = ask(call, call)
    assert [status for status, _ in answers] == [201, 201]
    assert answers[0] == answers[1]
    assert creations == 1


@pytest.mark.usefixtures("criu")
def test_a_fork_cuts_streams_and_its_children_have_the_commands():
    async def main():
        async with LocalProvider() as local, e2b_server(local) as (server, url):
            account = {"api_key": "e2b_test", "api_url": url, "sandbox_url": url}
            sandbox = await AsyncSandbox.create(**account)
            counting = "n=0; while read word; do n=$((n+1)); echo $n $word; done"
            handle = await sandbox.commands.run(counting, background=True, stdin=True)
            await sandbox.commands.send_stdin(handle.pid, "a\n")
            forks = await sandbox.fork(count=2)
            with pytest.raises(SandboxException):
                await handle.wait()
            found = []
            for name, each in zip("xyz", [sandbox, *forks], strict=True):
                again = await each.commands.connect(handle.pid)
                await each.commands.send_stdin(handle.pid, f"{name}\n")
                await each.commands.close_stdin(handle.pid)
                found.append((await again.wait()).stdout.splitlines()[-1])
            assert found == ["2 x", "2 y", "2 z"]
            return server.creations

    assert asyncio.run(main()) == 3


def test_a_fork_of_too_many_or_of_an_unknown_sandbox_is_refused(ask):
    (created,), _ = ask((CREATE, {"json": {"templateID": "base"}, "headers": KEY}))
    assert created[0] == 201
    answers, creations = ask(
        (("POST", "/sandboxes/i1/fork"), {"json": {"count": 2}, "headers": KEY}),
        (("POST", "/sandboxes/i1/snapshots"), {"json": {}, "headers": KEY}),
        (("DELETE", "/templates/none:default"), {"headers": KEY}),
    )
    assert [status for status, _ in answers] == [404, 404, 404]
    assert creations == 0


def test_a_request_for_a_template_that_e2b_would_refuse_is_refused(ask):
    def start(**fields):
        return ("POST", "/v2/templates/t/builds/b"), {"json": fields, "headers": KEY}

    answers, _ = ask(
        (("POST", "/v3/templates"), {"json": {"name": "a"}}),
        (("POST", "/v3/templates"), {"json": {"name": "a", "gpu": 1}, "headers": KEY}),
        (("POST", "/v3/templates"), {"json": {"name": "A b"}, "headers": KEY}),
        (("POST", "/v3/templates"), {"json": {"name": "a:v1"}, "headers": KEY}),
        start(fromImage="x", startCmd="sleep 1"),
        start(fromImage="x", steps=[{"type": "RUN", "shell": "sh"}]),
        start(fromImage="x"),
    )
    assert [status for status, _ in answers] == [401, 400, 400, 202, 400, 400, 400]
    problems = ["'gpu'", "'A b'", "", "'startCmd'", "'shell'", "the build is unknown"]
    for (_, text), problem in zip(answers[1:], problems, strict=True):
        assert problem in text
