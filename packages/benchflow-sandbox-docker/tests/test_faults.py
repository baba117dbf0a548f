"""Whatever goes wrong with an engine is a typed error, says what it was, and leaves nothing."""

import asyncio
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest
from benchflow_contracts import RolloutIdentity
from benchflow_contracts.cause import blame
from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    SnapshotError,
    TransferError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.service import ServiceSpec
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_docker.engine import DockerEngine
from benchflow_sandbox_docker.pending_cleanup import PendingCleanup
from benchflow_sandbox_docker.running_container import RunningContainer

DOCKER = {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"}
IMAGE = {"Id": "i", "Config": {}, "Os": "linux", "Architecture": "amd64", "RootFS": {}}


class Server(ThreadingMixIn, UnixStreamServer):
    """An engine that says what it is, and answers every other call in the same way."""

    daemon_threads = True


@contextmanager
def engine(path, answer, told=None):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if told is not None and self.path == "/version":
                reply(self, 200, told)
            else:
                answer(self)

        do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

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


def reply(handler, status, content):
    body = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    for name, value in getattr(handler, "passed_on", {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def failing(message):
    return lambda handler: reply(handler, 500, {"message": message})


def create(tmp_path, answer, told=DOCKER, **options):
    async def main():
        async with DockerProvider(store=tmp_path / "store", **options) as provider:
            await provider.create(SandboxSpec())

    with engine(tmp_path / "sock", answer, told):
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


def test_a_full_disk_of_the_engine_is_the_hosts_and_may_pass(tmp_path):
    with pytest.raises(HostError, match="no space left") as caught:
        create(tmp_path, failing("write /x: no space left on device"))
    assert "free space" in caught.value.hint
    assert caught.value.retryable


def test_an_unreachable_registry_is_reported_with_a_remedy(tmp_path):
    def answer(handler):
        pulled = "/images/create" in handler.path
        reply(handler, 500 if pulled else 404, {"message": "dial tcp: network is unreachable"})

    with pytest.raises(SandboxError, match="network is unreachable") as caught:
        create(tmp_path, answer)
    assert "--pull" in caught.value.hint
    assert caught.value.retryable


def test_an_engine_that_does_not_answer_is_given_up(tmp_path):
    over = threading.Event()
    try:
        with pytest.raises(SandboxTimeoutError, match="did not answer in 1 s") as caught:
            create(tmp_path, lambda _: over.wait(30), call_seconds=1)
    finally:
        over.set()
    assert caught.value.retryable


def test_a_container_that_was_removed_is_not_removed_again(tmp_path):
    """A second removal of every container, to be told that it is gone, costs time at its end."""
    answers = {
        "/containers/create": (400, {"message": "no storage-opt"}),
        "/containers/create?name": (201, {"Id": "c"}),
        "/start": (500, {"message": "enough"}),
    }
    removed = []

    def answer(handler):
        path = handler.path.removeprefix("/v1.41").partition("=")[0]
        if handler.command == "DELETE":
            removed.append(path.partition("?")[0])
        found = next((answers[end] for end in answers if path.endswith(end)), (200, IMAGE))
        reply(handler, *found)

    with pytest.raises(SandboxError, match="enough"):
        create(tmp_path, answer)
    assert removed == ["/containers/c"]


def test_what_came_late_is_removed_by_two_at_once(tmp_path):
    answers = [(204, {}), (409, {"message": "is already in progress"}), (404, {"message": "gone"})]
    both = threading.Barrier(2)

    def answer(handler):
        status, told = answers.pop(0)
        if status != 404:
            both.wait(30)
        reply(handler, status, told)

    async def main():
        asked = await DockerEngine.connect(str(tmp_path / "sock"), 30)
        late = PendingCleanup(asked)
        with pytest.raises(SandboxTimeoutError), late.track("container", "x"):
            raise SandboxTimeoutError("no answer")
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(late.remove())
        asked.close()

    with engine(tmp_path / "sock", answer, DOCKER):
        asyncio.run(main())
    assert answers == []


def test_an_engine_that_hangs_up_may_be_asked_again(tmp_path):
    with pytest.raises(SandboxError, match="cannot be reached") as caught:
        create(tmp_path, lambda handler: handler.wfile.write(b"no HTTP at all\r\n\r\n"))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("told", "spoken"),
    [
        ({"ApiVersion": "1.52", "MinAPIVersion": "1.44"}, "1.44"),
        ({"ApiVersion": "1.52", "MinAPIVersion": "1.24"}, "1.41"),
        ({"ApiVersion": "1.41"}, "1.41"),
    ],
)
def test_an_engine_is_asked_for_no_more_than_the_oldest_that_it_still_speaks(
    tmp_path, told, spoken
):
    asked = []

    def answer(handler):
        asked.append(handler.path.split("/")[1])
        failing("enough")(handler)

    with pytest.raises(SandboxError, match="enough"):
        create(tmp_path, answer, told)
    assert set(asked) == {f"v{spoken}"}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"ApiVersion": "1.40"}, "newest API version is 1.40"),
        ({**DOCKER, "Components": [{"Name": "Podman DockerEngine"}]}, "is Podman"),
        ({"Version": "1"}, "not a Docker engine"),
        ([], "not a Docker engine"),
        ({"ApiVersion": "new"}, "not a Docker engine"),
        ({"ApiVersion": "1.41", "Components": [1]}, "not a Docker engine"),
    ],
)
def test_what_is_no_engine_that_we_know_is_refused(tmp_path, told, why):
    with pytest.raises(SandboxUnsupportedError, match=why):
        create(tmp_path, failing("never asked"), told)


class Slow:
    """The real engine, which lets one call wait until it is told, and hangs up then if asked."""

    def __init__(self, api, call, *, answers):
        self.begun, self.made, self.over = asyncio.Event(), asyncio.Event(), threading.Event()
        self.volumes = set()
        self._api, self._call, self._answers = api, call, answers
        self._loop = asyncio.get_running_loop()

    def __call__(self, handler):
        waits = re.search(self._call, handler.path)
        asked = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if "/volumes/create" in handler.path:
            self.volumes.add(json.loads(asked)["Name"])
        if waits:
            self._loop.call_soon_threadsafe(self.begun.set)
            self.over.wait(30)
            # As one that had seen its pipes before they went.
            for mount in json.loads(asked).get("HostConfig", {}).get("Mounts", ()):
                if mount["Type"] == "bind" and not Path(mount["Source"]).exists():
                    Path(mount["Source"]).mkdir(parents=True)
        status, body = forward(self._api, handler, asked)
        if waits:
            assert status == 201, body
            self._loop.call_soon_threadsafe(self.made.set)
        if self._answers or not waits:
            reply(handler, status, body)


def with_services(image):
    idle = {"image": image, "command": ("sleep", "1000")}
    db = ServiceSpec(name="db", network_of="", volumes={"/data": "data"}, **idle)
    return SandboxSpec(services=(db, ServiceSpec(name="web", **idle)))


@pytest.mark.parametrize(
    "call",
    [
        r"/containers/create\?name=benchflow-d-[0-9a-f]{12}$",
        r"/containers/create\?name=.*-db$",
        "/networks/create",
        "/volumes/create",
    ],
    ids=["sandbox", "service", "network", "volume"],
)
def test_what_a_slow_engine_makes_after_all_is_removed(api, image, tmp_path, monkeypatch, call):
    async def main():
        slow = Slow(api, call, answers=False)
        with engine(tmp_path / "sock", slow):
            async with DockerProvider(
                image=image, store=tmp_path / "store", call_seconds=4
            ) as provider:
                with pytest.raises(SandboxError, match="did not answer"):
                    await provider.create(
                        with_services(image),
                        identity=RolloutIdentity(other={"late": str(tmp_path)}),
                    )
                assert slow.begun.is_set()
                slow.over.set()
                async with asyncio.timeout(30):
                    await slow.made.wait()
                assert len(labelled(api, tmp_path)) == 1
        return slow.volumes

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    asked = asyncio.run(main())
    assert labelled(api, tmp_path) == []
    assert not asked & {each["Name"] for each in api.volumes()["Volumes"] or ()}


def test_a_service_that_is_created_while_its_sandbox_fails_is_removed(
    api, image, tmp_path, monkeypatch
):
    async def main():
        slow = Slow(api, "-web$", answers=True)
        with engine(tmp_path / "sock", slow):
            async with DockerProvider(image=image, store=tmp_path / "store") as provider:
                identity = RolloutIdentity(other={"late": str(tmp_path)})
                async with asyncio.TaskGroup() as group:
                    making = group.create_task(
                        provider.create(with_services(image), identity=identity)
                    )
                    await slow.begun.wait()
                    making.cancel()
                    slow.over.set()
                assert making.cancelled()
                return labelled(api, tmp_path)

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    assert asyncio.run(main()) == []


def labelled(api, word):
    filters = {"label": f"benchflow.labels.late={word}"}
    volumes = api.volumes(filters=filters)["Volumes"] or []
    return [*api.containers(all=True, filters=filters), *api.networks(filters=filters), *volumes]


def forward(api, handler, body):
    """Ask the real engine the same; return its status and the JSON of its answer."""
    headers = {"Content-Type": handler.headers.get("Content-Type", "")}
    answer = api.request(
        handler.command, api.base_url + handler.path, data=body, headers=headers, timeout=60
    )
    handler.passed_on = {k: v for k, v in answer.headers.items() if k.startswith("X-Docker")}
    return answer.status_code, answer.json() if answer.content else {}


def test_a_rootless_engine_that_holds_nothing_still_says_so_and_compares_nothing(
    api, image, tmp_path, monkeypatch
):
    rootless = {"CgroupDriver": "none", "SecurityOptions": ["name=seccomp", "name=rootless"]}
    without_pause = {"message": "cannot toggle freezer: cgroups not configured for container"}

    def answer(handler):
        asked = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if handler.path.endswith("/pause") and rootless["CgroupDriver"] == "none":
            status, body = 500, without_pause
        else:
            status, body = forward(api, handler, asked)
        reply(handler, status, body | rootless if handler.path.endswith("/info") else body)

    async def main():
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            box = await provider.create(SandboxSpec())
            with pytest.raises(SandboxUnsupportedError, match="without control groups"):
                await box.snapshot()
            # As one with control groups that were delegated to it.
            rootless["CgroupDriver"] = "systemd"
            await box.snapshot()
            with pytest.raises(SandboxUnsupportedError, match="the engine is rootless"):
                await box.set_baseline()
            # Nobody but the engine can read the files: it counts them, and holes, too.
            assert (await box.exec("truncate -s 100G big")).ok
            with pytest.raises(SandboxLimitError, match="102400 MB"):
                await box.snapshot()
            assert (await box.exec("echo goes on")).ok

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with engine(tmp_path / "sock", answer):
        asyncio.run(main())


REFUSALS = {
    "a pause that works and is reported as failed": {
        "/pause": (500, "cannot pause: the freezer timed out", True)
    },
    "an event of the last resume that comes late": {
        "/pause": (409, "container is already paused", False)
    },
    "an event of the last pause that comes late": {
        "/unpause": (409, "container is not paused", False)
    },
}


@pytest.mark.parametrize("refusals", REFUSALS.values(), ids=REFUSALS)
def test_a_container_is_paused_and_resumed_though_the_engine_knows_its_state_late(
    api, image, tmp_path, monkeypatch, refusals
):
    left = dict(refusals)

    def answer(handler):
        asked = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        call = "/" + handler.path.rpartition("/")[2]
        status, message, works = left.pop(call, (None, "", True))
        real = forward(api, handler, asked) if works else (status, {})
        body = real[1] if status is None else {"message": message}
        if "State" in body and "/unpause" in refusals and not left:
            body["State"] |= {"Status": "running", "Paused": False}
        reply(handler, status or real[0], body)

    async def main():
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            box = await provider.create(SandboxSpec())
            for _ in range(2):
                async with box.freeze():
                    state = api.inspect_container(f"benchflow-{box.id}")["State"]
                    assert state["Status"] == "paused"
                assert (await box.exec("echo runs")).stdout == "runs\n"
            assert not left

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with engine(tmp_path / "sock", answer):
        asyncio.run(main())


# It is asked for its number as soon as its first process has answered.
@pytest.mark.parametrize("call", ["start", "json"])
def test_a_container_that_is_killed_while_it_is_made_ready_may_be_made_again(
    api, image, tmp_path, monkeypatch, call
):
    def answer(handler):
        asked = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        status, body = forward(api, handler, asked)
        found = re.search(rf"/containers/(benchflow-d-[0-9a-f]+)/{call}$", handler.path)
        if found and not killed:
            killed.append(api.inspect_container(found[1])["Id"])
            api.kill(killed[0])
        reply(handler, status, body)

    killed = []
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with pytest.raises(SandboxError, match="exit code 137") as caught:
        create(tmp_path, answer, None, image=image)
    assert caught.value.retryable
    assert killed
    assert not [each for each in api.containers(all=True) if each["Id"] in killed]


def test_an_engine_that_hangs_up_amid_a_download_is_not_taken_for_a_missing_file(
    api, image, tmp_path, monkeypatch
):
    def answer(handler):
        asked = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if "/archive?" in handler.path:
            handler.wfile.write(b"no HTTP at all\r\n\r\n")
        else:
            reply(handler, *forward(api, handler, asked))

    async def main():
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            box = await provider.create(SandboxSpec())
            with pytest.raises(SandboxError, match="cannot be reached") as caught:
                await box.download("/bin", tmp_path / "got")
        return caught.value

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with engine(tmp_path / "sock", answer):
        told = asyncio.run(main())
    assert told.retryable
    assert not isinstance(told, TransferError)


def test_a_container_that_is_removed_while_it_is_held_is_not_taken_for_one_without_files(
    with_box, api, tmp_path
):
    async def check(box):
        async with box.freeze():
            api.remove_container(f"benchflow-{box.id}", force=True)
            with pytest.raises(SandboxError) as caught:
                await box.download("/bin", tmp_path / "got")
        return caught.value

    told = with_box(check)
    assert told.retryable
    assert not isinstance(told, TransferError)


def test_a_container_that_somebody_else_pauses_does_not_answer_and_is_lost(
    with_box, api, monkeypatch
):
    monkeypatch.setattr("benchflow_sandbox_core.running_box._ANSWER_SECONDS", 2)
    monkeypatch.setattr("benchflow_sandbox_core.fifo.init._PROMPT_SECONDS", 2)
    monkeypatch.setattr("benchflow_sandbox_docker.running_container._END_SECONDS", 2)

    async def check(box):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(failure(box.exec("sleep 1000", timeout=3)))
            await box.exec("true")
            await asyncio.to_thread(api.pause, f"benchflow-{box.id}")
        assert isinstance(running.result(), SandboxLostError)
        assert "does not answer" in str(running.result())

    with_box(check)


SAID = {
    # As an engine does that finds the containers of one that was killed.
    "terminate": "exit code 143",
    "kill": "exit code 137",
    # A removal kills first, and takes a moment.
    "remove": "exit code 137|another program removed",
}


@pytest.mark.parametrize("end", ["terminate", "kill", "remove"])
def test_a_command_whose_container_is_ended_by_somebody_else_says_so(with_box, api, end):
    async def check(box):
        name = f"benchflow-{box.id}"
        async with asyncio.TaskGroup() as group:
            process = await box.spawn(["sleep", "1000"])
            running = group.create_task(failure(box.exec(["sh", "-c", "echo up >&2; sleep 1000"])))
            if end == "remove":
                await asyncio.to_thread(api.remove_container, name, force=True)
            else:
                await asyncio.to_thread(api.kill, name, f"SIG{end[:4].upper()}")
        for error in (running.result(), await failure(box.exec("true"))):
            assert re.search(SAID[end], str(error))
            assert isinstance(error, SandboxLostError)
        assert await process.wait() == 137
        await process.aclose()

    with_box(check)


class EngineWithAnEnd:
    """An engine that knows one container, which has ended with this exit code."""

    def __init__(self, code):
        self.code = code

    async def do(self, method, *_args, **_options):
        state = {"Running": False, "OOMKilled": False, "ExitCode": self.code}
        return {"State": state} if method == "inspect_container" else None


# An engine that replaces a killed one may have lost the exit code, and reports 0.
@pytest.mark.parametrize(("code", "is_lost"), [(0, True), (137, True), (255, True), (1, False)])
def test_only_an_exit_code_of_the_first_process_itself_is_not_a_loss(tmp_path, code, is_lost):
    async def find():
        container = RunningContainer(EngineWithAnEnd(code), "any", tmp_path)
        try:
            return await container.cause()
        finally:
            container.close()

    error = asyncio.run(find())
    assert isinstance(error, SandboxLostError) is is_lost
    assert f"exit code {code}" in str(error)


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


def test_a_fork_asks_the_engine_for_nothing_that_it_has_said(api, image, tmp_path, monkeypatch):
    asked = []

    def answer(handler):
        asked.append(re.sub(r"^/v[\d.]+|\?.*", "", handler.path))
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        reply(handler, *forward(api, handler, body))

    async def main():
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            box = await provider.create(SandboxSpec(network="public"))
            snapshot = await box.snapshot()
            await provider.create(SandboxSpec(network="public"), image=snapshot)
            return snapshot.ref

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with engine(tmp_path / "sock", answer):
        ref = asyncio.run(main())
    assert asked.count("/networks") == 1
    assert asked.count(f"/images/{ref}/json") == 1
    before = asked[next(i for i, path in enumerate(asked) if path.endswith("/unpause")) - 1]
    assert before == f"/images/{ref}/json"


def test_the_image_of_a_commit_that_was_late_is_removed_with_its_sandbox(
    api, image, tmp_path, monkeypatch
):
    over = threading.Event()

    def answer(handler):
        asked = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        found = forward(api, handler, asked)
        if "/commit" in handler.path:
            over.wait(60)
        else:
            reply(handler, *found)

    async def main():
        async with DockerProvider(
            image=image, store=tmp_path / "store", call_seconds=4
        ) as provider:
            box = await provider.create(
                SandboxSpec(), identity=RolloutIdentity(other={"late": str(tmp_path)})
            )
            with pytest.raises(SnapshotError, match="did not answer") as caught:
                await box.snapshot()
            over.set()
            assert caught.value.retryable
            assert blame(caught.value, inside="agent").by == "host"
            left = {"label": f"benchflow.labels.late={tmp_path}"}
            assert api.images(filters=left) == []
            assert api.containers(all=True, filters=left) == []

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with engine(tmp_path / "sock", answer):
        asyncio.run(main())
