"""Clients of a service that runs: over HTTP on a real socket, and over ZMQ."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import uvicorn
import zmq
import zmq.asyncio
from benchflow_contracts import TrainingOptions
from benchflow_serve import RolloutService, create_app
from benchflow_serve.env_server import EnvServer, ServedEpisodes
from benchflow_serve_client import (
    GroupRequest,
    ModelEndpoint,
    PolicyUpdate,
    RetryPolicy,
    RolloutRequest,
    ServeClient,
    ServiceBusyError,
    ServiceConflictError,
    ServiceNotFoundError,
    ServiceRefusedError,
)
from served_rollouts import TASK, open_service, settings_at, wait_for

ENDPOINT = ModelEndpoint(url="http://127.0.0.1:9/v1", model="m")
Talk = Callable[[ServeClient, RolloutService], Awaitable[None]]


@asynccontextmanager
async def served(home: Path, agent: str = "quick_agent", **more: Any) -> AsyncIterator[Any]:
    """Yield a client and the service behind it."""
    service = RolloutService(settings_at(home, agent, **more))
    config = uvicorn.Config(create_app(service), port=0, log_level="critical", lifespan="on")
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with ServeClient(url, retry=RetryPolicy(total_sec=5, first_sec=0.05)) as client:
            await client.check_health()
            yield client, service
        service.stop_streams()
        server.should_exit = True


def play(home: Path, talk: Talk, *arguments: Any, **more: Any) -> None:
    async def scenario() -> None:
        async with served(home, *arguments, **more) as (client, service):
            await talk(client, service)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_rollout_from_its_submission_to_its_acknowledgement(tmp_path: Path) -> None:
    async def talk(client: ServeClient, service: RolloutService) -> None:
        status = await client.submit(RolloutRequest(task=TASK), key="k")
        assert (await client.submit(RolloutRequest(task=TASK), key="k")).id == status.id
        events = [event async for event in client.events(status.id)]
        assert [event.id for event in events] == list(range(1, len(events) + 1))
        assert events[-1].kind == "ended"
        assert [event async for event in client.events(status.id, after=len(events))] == []
        assert (await client.wait(status.id)).reward == 0.5
        result = await client.result(status.id)
        assert [sample["reward"] for sample in result.samples] == [0.5]
        await client.acknowledge(status.id)
        assert (await client.status(status.id)).is_acknowledged

    play(tmp_path, talk)


def test_a_group_a_policy_capacity_and_tasks(tmp_path: Path) -> None:
    async def talk(client: ServeClient, service: RolloutService) -> None:
        group = await client.submit_group(GroupRequest(size=3, rollout=RolloutRequest(task=TASK)))
        ended = await client.wait_group(group.id)
        assert [member.reward for member in ended.members] == [0.5] * 3
        policy = await client.update_policy("p", PolicyUpdate(version="1", endpoint=ENDPOINT))
        assert (await client.policy("p")).version == policy.version == "1"
        assert (await client.capacity()).ended == 3
        assert [task.id for task in (await client.tasks()).tasks] == [TASK]

    play(tmp_path, talk)


def test_refusals_are_typed_errors_with_the_place(tmp_path: Path) -> None:
    async def talk(client: ServeClient, service: RolloutService) -> None:
        with pytest.raises(ServiceNotFoundError):
            await client.status("unknown")
        with pytest.raises(ServiceRefusedError) as caught:
            await client.submit(RolloutRequest(task=TASK, branch={"kind": "nothing"}))
        assert caught.value.where is not None
        running = await client.submit(RolloutRequest(task=TASK))
        with pytest.raises(ServiceConflictError):
            await client.result(running.id)
        with pytest.raises(ServiceConflictError):
            await client.resume(running.id)
        await wait_for(service, running.id, "running")
        await client.submit(RolloutRequest(task=TASK))
        # The queue is full for longer than the client retries.
        with pytest.raises(ServiceBusyError) as full:
            await client.submit(RolloutRequest(task=TASK))
        assert full.value.retry_after
        assert (await client.cancel(running.id)).outcome == "cancelled"

    play(tmp_path, talk, "hanging_agent", slots=1, queue=1)


def test_an_env_client_gets_an_episode_of_the_service_and_cancels(tmp_path: Path) -> None:
    run = {
        "task_data": {"id": TASK},
        "client": {"type": "train", "base_url": ENDPOINT.url, "api_key_var": "NO_SUCH"},
        "model": "m",
        "sampling": {},
    }

    async def ask(socket: Any, name: bytes, method: bytes, message: Any) -> None:
        await socket.send_multipart([name, method, msgpack.packb(message)])

    async def scenario() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent")) as service:
            server = EnvServer(ServedEpisodes(service), "tcp://127.0.0.1:*")
            context: Any = zmq.asyncio.Context()
            socket = context.socket(zmq.DEALER)
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.serve())
                socket.connect(server.address)
                await ask(socket, b"r", b"run", run)
                async with asyncio.timeout(30):
                    while not service.statuses():  # noqa: ASYNC110 - behind a socket
                        await asyncio.sleep(0.01)
                    (status,) = service.statuses()
                    await wait_for(service, status.id, "running")
                    await ask(socket, b"c", b"cancel", {"request_id": "r"})
                    replies = [await socket.recv_multipart() for _ in range(2)]
                assert {name for name, _, _ in replies} == {b"r", b"c"}
                assert service.status(status.id).outcome == "cancelled"
                assert (await service.capacity()).sandboxes == 0
                serving.cancel()
            socket.close(0)
            context.term()

    asyncio.run(scenario())


def test_an_episode_without_exact_tokens_is_not_trained_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_service(settings_at(tmp_path)) as service:
            source = ServedEpisodes(service)
            options = TrainingOptions(require_tokens=True)
            status = await source.submit(RolloutRequest(task=TASK, training=options))
            await wait_for(service, status.id, "ended")
            _, samples, left_out = await source.chosen_samples(status.id, options)
            assert samples == []
            assert left_out == {"inexact_tokens": 1}

    asyncio.run(scenario())
