"""Whatever goes wrong with an engine is a typed error, says what it was, and leaves nothing."""

import asyncio
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

import docker
import pytest
from benchflow_contracts.errors import SandboxError, SandboxLimitError, SandboxTimeoutError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_docker import DockerProvider


class Server(ThreadingMixIn, UnixStreamServer):
    """An engine that answers every call in the same way."""

    daemon_threads = True


@contextmanager
def engine(path, answer):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        def address_string(self):
            return "engine"

        def log_message(self, *_):
            """Say nothing."""

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def failing(message):
    def answer(handler):
        body = f'{{"message": "{message}"}}'.encode()
        handler.send_response(500)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def create(tmp_path, answer, **options):
    async def main():
        async with DockerProvider(store=tmp_path / "store", **options) as provider:
            await provider.create(SandboxSpec())

    with engine(tmp_path / "sock", answer):
        asyncio.run(main())


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, request):
    if "image" not in request.fixturenames:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")


def test_an_engine_that_fails_within_may_be_asked_again(tmp_path):
    with pytest.raises(SandboxError, match="boom") as caught:
        create(tmp_path, failing("boom"))
    assert caught.value.retryable
    assert list((tmp_path / "store").iterdir()) == []


def test_a_full_disk_of_the_engine_is_a_limit(tmp_path):
    with pytest.raises(SandboxLimitError, match="no space left") as caught:
        create(tmp_path, failing("write /x: no space left on device"))
    assert "free space" in caught.value.hint
    assert not caught.value.retryable


def test_an_engine_that_does_not_answer_is_given_up(tmp_path):
    over = threading.Event()
    try:
        with pytest.raises(SandboxTimeoutError, match="did not answer in 1 s") as caught:
            create(tmp_path, lambda _: over.wait(30), call_seconds=1)
    finally:
        over.set()
    assert caught.value.retryable


def test_an_engine_that_hangs_up_may_be_asked_again(tmp_path):
    with pytest.raises(SandboxError, match="cannot be reached") as caught:
        create(tmp_path, lambda handler: handler.wfile.write(b"no HTTP at all\r\n\r\n"))
    assert caught.value.retryable


@pytest.fixture
def api():
    client = docker.APIClient(version="1.41")
    yield client
    client.close()


@pytest.mark.parametrize("end", ["kill", "remove"])
def test_a_command_whose_container_is_ended_by_somebody_else_says_so(with_box, api, end):
    async def check(box):
        name = f"benchflow-{box.id}"
        async with asyncio.TaskGroup() as group:
            process = await box.spawn(["sleep", "1000"])
            running = group.create_task(failure(box.exec(["sh", "-c", "echo up >&2; sleep 1000"])))
            if end == "kill":
                await asyncio.to_thread(api.kill, name)
            else:
                await asyncio.to_thread(api.remove_container, name, force=True)
        for error in (running.result(), await failure(box.exec("true"))):
            # A removal kills first, and takes a moment.
            said = "exit code 137" if end == "kill" else "exit code 137|somebody removed"
            assert re.search(said, str(error))
            assert error.retryable
        assert await process.wait() == 137
        await process.aclose()

    with_box(check)


def test_a_container_that_its_memory_limit_ended_is_not_tried_again(with_box, api):
    eat = "s = []\nwhile True: s.append(bytearray(1 << 20))"

    async def check(box):
        with pytest.raises(SandboxLimitError):
            await box.exec(["python3", "-I", "-c", eat])
        # An agent cannot buy itself another try like this.
        await asyncio.to_thread(api.kill, f"benchflow-{box.id}")
        error = await failure(box.exec("true"))
        assert isinstance(error, SandboxLimitError)
        assert not error.retryable

    with_box(check, limits={"memory_mb": 64})


async def failure(work):
    with pytest.raises(SandboxError) as caught:
        await work
    return caught.value
