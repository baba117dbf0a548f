"""What our server with Daytona's API refuses, and its weaknesses, as Daytona has them."""

import asyncio
import socket

import daytona
import httpx
import pytest
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds import daytona_toolbox
from benchflow_testing_clouds.daytona import DaytonaAccount, daytona_server
from benchflow_testing_clouds.daytona_preview import Previews
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

KEY = {"authorization": "Bearer dtn_test"}
CREATE = ("POST", "/sandbox")


@pytest.fixture
def ask():
    """Send requests to a server of its own; return the answers and the server."""

    def run(*requests):
        async def main():
            async with (
                LocalProvider() as local,
                daytona_server(local) as (server, url),
                httpx.AsyncClient(base_url=url) as client,
            ):
                answers = [await client.request(*words, **more) for words, more in requests]
                return [(each.status_code, each.text) for each in answers], server.creations

        return asyncio.run(main())

    return run


@pytest.fixture
def with_sandbox():
    """Run an async test against a sandbox of the SDK."""

    def run(test, **account):
        async def main():
            async with (
                LocalProvider() as local,
                daytona_server(local, DaytonaAccount(**account)) as (server, url),
            ):
                config = daytona.DaytonaConfig(
                    api_key="dtn_test", api_url=url, use_deprecated_polling=True
                )
                with pytest.warns(DeprecationWarning, match="[Pp]olling"):
                    sdk = daytona.AsyncDaytona(config)
                async with sdk:
                    params = daytona.CreateSandboxFromSnapshotParams(
                        os_user="root", auto_delete_interval=0
                    )
                    return await test(await sdk.create(params), server)

        return asyncio.run(main())

    return run


def test_a_call_without_the_key_or_to_an_unknown_route_is_refused(ask):
    answers, creations = ask(
        (CREATE, {"json": {}}),
        (("GET", "/sandbox/none"), {"headers": KEY}),
        (("POST", "/sandbox/none/fork"), {"headers": KEY}),
        (("GET", "/snapshots"), {"headers": KEY}),
        (("POST", "/toolbox/none/process/execute"), {"headers": KEY, "json": {}}),
    )
    assert [status for status, _ in answers] == [401, 404, 404, 404, 404]
    assert creations == 0


def test_unknown_fields_and_a_name_that_exists_are_refused(ask):
    answers, creations = ask(
        (CREATE, {"json": {"warp": 1}, "headers": KEY}),
        (CREATE, {"json": {"buildInfo": {"context": 1}}, "headers": KEY}),
        (CREATE, {"json": {"cpu": 2}, "headers": KEY}),
        (CREATE, {"json": {"name": "one"}, "headers": KEY}),
        (CREATE, {"json": {"name": "one"}, "headers": KEY}),
        (("POST", "/sandbox/one/pause"), {"headers": KEY}),
        (("GET", "/sandbox"), {"params": {"states": "started"}, "headers": KEY}),
    )
    assert [status for status, _ in answers] == [400, 400, 400, 200, 409, 404, 400]
    assert "unknown fields: ['warp']" in answers[0][1]
    assert creations == 1


def test_a_command_has_one_text_for_both_outputs_and_ends_after_its_time(with_sandbox, monkeypatch):
    monkeypatch.setattr(daytona_toolbox, "_DEFAULT_SECONDS", 0.2)

    async def test(sandbox, server):
        del server
        result = await sandbox.process.exec("echo one; echo two >&2; exit 3", timeout=20)
        assert (result.result, result.exit_code) == ("one\ntwo\n", 3)
        with pytest.raises(daytona.DaytonaProcessExecutionTimeoutError):
            await sandbox.process.exec("sleep 1000")

    with_sandbox(test)


@pytest.mark.parametrize("suppress", [False, True])
def test_a_session_passes_on_whole_lines_and_echoes_its_input(with_sandbox, monkeypatch, suppress):
    monkeypatch.setattr(daytona_toolbox, "_START_SECONDS", 0.5)

    async def test(sandbox, server):
        del server
        process, outputs, errors = sandbox.process, [], []
        await process.create_session("s")
        request = daytona.SessionExecuteRequest(
            command="printf 'a\\nb'; echo bad >&2; read line",
            run_async=True,
            suppress_input_echo=suppress,
        )
        command = await process.execute_session_command("s", request)
        with pytest.raises(daytona.DaytonaInternalServerError, match="input pipe"):
            await process.send_session_command_input("s", command.cmd_id, "too early")

        async def answer(text):
            if "".join([*outputs, text]).startswith("a\n") and not outputs:
                await process.send_session_command_input("s", command.cmd_id, "word")
            outputs.append(text)

        await process.get_session_command_logs_async("s", command.cmd_id, answer, errors.append)
        assert "".join(outputs) == ("a\nb\n" if suppress else "a\nword\nb\n")
        assert "".join(errors) == "bad\n"
        with pytest.raises(daytona.DaytonaCommandAlreadyCompletedError):
            await process.send_session_command_input("s", command.cmd_id, "too late")

    with_sandbox(test)


class FakeSandbox:
    """A sandbox whose port 3000 is a server of this process."""

    def __init__(self, server):
        self.address = server.sockets[0].getsockname()

    async def connect_tcp(self, port):
        if port != 3000:
            raise ConnectionRefusedError
        connection = socket.create_connection(self.address)
        connection.setblocking(False)
        return connection


async def echo(connection):
    await connection.send(connection.request.headers.get("x-own", "none"))
    async for message in connection:
        await connection.send(message)


def test_a_preview_url_carries_a_websocket_for_who_has_its_token(with_sandbox):
    async def test(sandbox, server):
        made = server.made[sandbox.id]
        async with serve(echo, "127.0.0.1", 0) as inner:
            made.previews = Previews(FakeSandbox(inner), are_allowed=True)
            closed, link = [await sandbox.get_preview_link(port) for port in (3001, 3000)]
            right = {"X-Daytona-Preview-Token": link.token, "X-Own": "mine"}
            wrong = {**right, "X-Daytona-Preview-Token": "x"}
            for url, headers, status in (
                (link.url, {}, 401),
                (link.url, wrong, 401),
                (closed.url, right, 502),
                (link.url.replace(sandbox.id, "other"), right, 403),
            ):
                with pytest.raises(InvalidStatus, match=str(status)):
                    await connect(url.replace("http", "ws", 1), additional_headers=headers)
            url = link.url.replace("http", "ws", 1)
            async with connect(url, additional_headers=right) as connection:
                assert await connection.recv() == "mine"
                for message in (b"\0bytes" * 5000, "text"):
                    await connection.send(message)
                    assert await connection.recv() == message
                made.previews.cut()
                with pytest.raises(ConnectionClosed):
                    await connection.recv()

    with_sandbox(test)


def test_an_idle_sandbox_is_stopped_after_15_minutes(with_sandbox):
    async def test(sandbox, server):
        await sandbox.process.exec("true")
        async with asyncio.timeout(20):
            await server.removed.wait()
        with pytest.raises(daytona.DaytonaNotFoundError):
            await sandbox.refresh_data()

    with_sandbox(test, minute=0.05)
