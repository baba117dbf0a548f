"""The wire of verifiers' env server, with bytes written by hand: verifiers is not installed."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio
from benchflow_contracts import UsageError
from benchflow_contracts.gateway import SamplingMask
from benchflow_export import samples_of
from benchflow_serve.env_server import EnvServer
from benchflow_serve.env_wire import (
    EnvWireError,
    deltas_of,
    read_run,
    render_episode,
    task_hash,
    unpack,
)
from episode_source import EpisodeSource
from forked_calls import forked, recorded
from hypothesis import given
from hypothesis import strategies as st

CLIENT = {"type": "train", "base_url": "http://127.0.0.1:8000/v1", "api_key_var": "MODEL_KEY"}

HEALTH = [b"h1", b"health", b"\x80"]
CANCEL_RUN = [b"c1", b"cancel", b"\x81\xaarequest_id\xa3run"]
RUN = [
    b"run",
    b"run",
    (
        b"\x84"
        b"\xa9task_data\x82\xa2id\xa6forked\xa3idx\x00"
        b"\xa6client\x83\xa4type\xa5train\xa8base_url\xaehttp://h:80/v1\xabapi_key_var\xa9MODEL_KEY"
        b"\xa5model\xa1m"
        b"\xa8sampling\x82\xabtemperature\xcb?\xf0\x00\x00\x00\x00\x00\x00\xa5top_p\xc0"
    ),
]
"""The frames of an EnvClient: the id of the request, the method, and the payload."""


class Peer:
    """A client on a DEALER socket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, *frames: bytes) -> None:
        await self._socket.send_multipart(frames)

    async def ask(self, request: bytes, method: bytes, message: Any) -> None:
        await self.send(request, method, msgpack.packb(message))

    async def receive(self) -> tuple[bytes, bytes, dict[str, Any]]:
        async with asyncio.timeout(20):
            request, kind, data = await self._socket.recv_multipart()
        return request, kind, msgpack.unpackb(data)

    async def until_reply(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        while True:
            _, kind, message = await self.receive()
            if kind == b"reply":
                return deltas, message
            deltas.append(message)


@asynccontextmanager
async def serving(source: EpisodeSource, **options: Any) -> AsyncIterator[EnvServer]:
    server = EnvServer(source, "tcp://127.0.0.1:*", **options)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve())
        await asyncio.sleep(0)  # A task that has not begun does not close the socket.
        try:
            yield server
        finally:
            task.cancel()


@asynccontextmanager
async def connected(server: EnvServer) -> AsyncIterator[Peer]:
    context: Any = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(server.address)
    try:
        yield Peer(socket)
    finally:
        socket.close()
        context.term()


def play(
    talk: Callable[[Peer, EpisodeSource], Coroutine[Any, Any, None]], **options: Any
) -> EpisodeSource:
    async def scenario() -> EpisodeSource:
        source = EpisodeSource()
        async with serving(source, **options) as server, connected(server) as peer:
            await talk(peer, source)
        return source

    return asyncio.run(scenario())


def run_of(task: str, **more: Any) -> dict[str, Any]:
    run = {"task_data": {"id": task}, "client": CLIENT, "model": "m", "sampling": {}}
    return {**run, **more}


def test_health_is_answered() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.send(*HEALTH)
        assert await peer.receive() == (b"h1", b"reply", {"success": True, "error": None})

    play(talk)


def test_a_run_is_one_episode_with_one_trace_a_leaf() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.send(*RUN)
        deltas, reply = await peer.until_reply()
        assert reply["success"]
        assert reply["error"] is None
        assert reply["traces"] == [
            {"id": "r1-n2", "nodes": 5, "calls": 2},
            {"id": "r1-n3", "nodes": 5, "calls": 2},
        ]
        opened = [delta["open"]["id"] for delta in deltas if "open" in delta]
        assert opened == ["r1-n2", "r1-n3"]
        scores = [delta["set"]["rewards"]["reward"]["score"] for delta in deltas if "set" in delta]
        assert scores == [1.0, 0.0]
        data = {"id": "forked", "idx": 0}
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        task = {"type": "BenchFlowTask", "data": data, "key": digest, "hash": digest}
        assert reply["head"]["task"] == task
        assert [delta["open"]["task"] for delta in deltas if "open" in delta] == [task, task]
        assert reply["head"]["ok"]

    source = play(talk)
    (request,) = source.requests
    assert request.endpoint is not None
    assert (request.endpoint.url, request.endpoint.model) == ("http://h:80/v1", "m")
    assert request.endpoint.upstream == "vllm"
    assert request.sampling == {"temperature": 1.0}
    assert request.training.require_tokens
    assert source.acknowledged == ["r1"]


def test_a_run_is_cancelled_by_its_own_client_only() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run_of("waits"))
        await until(lambda: bool(source.requests))
        await peer.send(*CANCEL_RUN)
        replies = {request: message for request, _, message in [await peer.receive() for _ in "12"]}
        assert replies[b"c1"] == {"success": True, "error": None, "cancelled": True}
        assert replies[b"run"] == {"success": False, "error": "Cancelled: rollout aborted"}
        await peer.send(*CANCEL_RUN)
        assert (await peer.receive())[2]["cancelled"] is False

    assert play(talk).cancelled == ["r1"]


def test_another_client_cannot_cancel_a_run() -> None:
    async def scenario() -> None:
        source = EpisodeSource()
        async with (
            serving(source) as server,
            connected(server) as peer,
            connected(server) as other,
        ):
            await peer.ask(b"run", b"run", run_of("waits"))
            await until(lambda: bool(source.requests))
            await other.send(*CANCEL_RUN)
            assert (await other.receive())[2]["cancelled"] is False
            assert source.cancelled == []
        assert source.cancelled == ["r1"], "the end of the server cancels its runs"

    asyncio.run(scenario())


def test_a_cancellation_behind_its_run_finds_it() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run_of("waits"))
        await peer.send(*CANCEL_RUN)
        replies = {request: message for request, _, message in [await peer.receive() for _ in "12"]}
        assert replies[b"c1"]["cancelled"] is True

    source = play(talk)
    assert source.cancelled == [f"r{n}" for n, _ in enumerate(source.requests, 1)]


def test_a_rollout_without_a_score_is_a_failed_episode_and_not_a_reward_of_0() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run_of("fails"))
        deltas, reply = await peer.until_reply()
        assert deltas == []
        assert reply["success"]
        assert reply["head"]["ok"] is False
        assert reply["traces"] == []
        assert reply["head"]["errors"][0] == {"type": "AgentError", "message": "it gave up"}

    play(talk)


def test_a_full_queue_is_waited_for() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run_of("late"))
        assert (await peer.until_reply())[1]["success"]

    play(talk)


def test_the_name_of_a_policy_as_the_model_uses_its_endpoint() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run_of("forked", model="policy"))
        await peer.until_reply()

    (request,) = play(talk).requests
    assert (request.policy, request.endpoint) == ("policy", None)


@pytest.mark.parametrize(("allowed", "key"), [((), None), (("MODEL_KEY",), "canary")])
def test_a_run_names_only_allowed_variables(
    allowed: tuple[str, ...], key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", "canary")

    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run_of("forked"))
        await peer.until_reply()

    (request,) = play(talk, key_variables=allowed).requests
    assert request.endpoint is not None
    found = request.endpoint.api_key
    assert (None if found is None else found.get_secret_value()) == key


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_of("unknown"), "no task has the id 'unknown'"),
        (run_of("../etc"), "task"),
        (run_of("forked", task_data={}), "no 'id' and no 'name'"),
        (run_of("forked", task_data={"id": "forked", "x": b"bytes"}), "not JSON"),
        (run_of("forked", client={**CLIENT, "base_url": "file:///etc"}), "url: String"),
        (run_of("forked", client={**CLIENT, "type": "other"}), "client.type"),
        (run_of("forked", sampling={"stop": b"bytes"}), "sampling"),
        ({}, "task_data"),
        ([], "not a map"),
    ],
)
def test_a_wrong_run_is_answered_with_its_reason(run: Any, reason: str) -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.ask(b"run", b"run", run)
        _, reply = await peer.until_reply()
        assert reply["success"] is False
        assert reason in reply["error"]
        await peer.send(*HEALTH)
        assert (await peer.receive())[2]["success"]

    play(talk)


def test_messages_of_strangers_do_not_end_the_server() -> None:
    async def talk(peer: Peer, source: EpisodeSource) -> None:
        await peer.send(b"one frame")
        await peer.send(b"x" * 1000, b"run", RUN[2])
        await peer.send(b"r", b"other", b"\x80")
        assert "unknown method" in (await peer.receive())[2]["error"]
        await peer.send(b"r", b"cancel", b"\xc1")
        assert "not msgpack" in (await peer.receive())[2]["error"]
        await peer.send(b"r", b"cancel", b"\x81\xaarequest_id\x01")
        assert "not a string" in (await peer.receive())[2]["error"]
        await peer.send(*HEALTH)
        assert (await peer.receive())[2]["success"]

    play(talk)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_run_or_an_error(data: bytes) -> None:
    with suppress(EnvWireError):
        read_run(data)


def test_a_deep_message_is_an_error() -> None:
    with pytest.raises(EnvWireError, match="not msgpack"):
        unpack(b"\x91" * 5000 + b"\xc0")


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:5000", "tcp://*:5000", "tcp://127.0.0.1.evil:1", "inproc://x", ""]
)
def test_an_address_of_other_machines_needs_a_word_of_the_operator(address: str) -> None:
    with pytest.raises(UsageError, match="any machine"):
        EnvServer(EpisodeSource(), address)


def test_an_address_in_use_is_refused() -> None:
    async def scenario() -> None:
        async with serving(EpisodeSource()) as server:
            with pytest.raises(UsageError, match="cannot listen"):
                EnvServer(EpisodeSource(), server.address)

    asyncio.run(scenario())


def test_the_hash_of_a_task_leaves_none_out_of_models_and_not_of_tables() -> None:
    data = {"id": "t", "name": None, "timeout": {"agent": None, "setup": 1.0}, "info": {"a": None}}
    known = {"id": "t", "timeout": {"setup": 1.0}, "info": {"a": None}}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    assert task_hash(data) == digest


def test_a_sampling_mask_is_an_array_of_verifiers_for_tokens_that_are_trained_on() -> None:
    calls = recorded()
    masked = SamplingMask.of([[each, 0] for each in calls[1].completion_token_ids or ()])
    calls[1] = calls[1].model_copy(update={"sampling_mask": masked})
    samples = samples_of(forked(calls))
    rendered = render_episode(samples, {call.id: call for call in calls}, {})
    assert rendered is not None
    with_mask, without = [trace["nodes"][-1] for trace in rendered["traces"]]
    ids = {"__nd__": True, "dtype": "int32", "shape": [2], "data": bytes([7, 0, 0, 0] + [0] * 4)}
    counts = {"__nd__": True, "dtype": "int32", "shape": [1], "data": bytes([2, 0, 0, 0])}
    assert with_mask["sampling_mask"] == {"ids": ids, "counts": counts}
    assert sum(with_mask["mask"]) == 1
    assert "sampling_mask" not in without


def test_a_long_trace_is_sent_in_parts_that_add_up() -> None:
    header = {"version": 1, "id": "t", "verifiers": {}, "task": {}}
    trace = {**header, "nodes": list(range(450)), "calls": list(range(10)), "ok": True}
    deltas = list(deltas_of(trace))
    assert len(deltas) == 3
    assert [node for delta in deltas for node in delta["nodes"]] == list(range(450))
    assert deltas[0]["open"] == header
    assert [delta.get("set") for delta in deltas] == [None, None, {"ok": True}]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - of a socket
            await asyncio.sleep(0.01)
