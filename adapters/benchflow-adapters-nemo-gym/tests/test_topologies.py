"""One descriptor in each topology, and what an agent may do in each."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_adapters_nemo_gym import CommandRequest, LeaseRequest
from benchflow_adapters_nemo_gym.broker_client import BrokerClient
from benchflow_adapters_nemo_gym.descriptor import SessionDescriptor, Topology
from benchflow_adapters_nemo_gym.resources_server import create_resources_app
from benchflow_adapters_nemo_gym.rows import make_row
from benchflow_contracts import (
    BenchFlowError,
    RolloutIdentity,
    SandboxLostError,
    SandboxSpec,
    Task,
)
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_kernel import ModelConfig
from benchflow_store import StoredRollout
from benchflow_tool_sessions import SessionManager
from nemo_broker_parts import (  # type: ignore[import-untyped,unused-ignore]
    TOKEN,
    in_loop,
    serving_app,
)

LOCAL = RunConfig(sandbox=SandboxConfig(provider="local"))
COOKIE = "BenchFlow___benchflow"
SOLVE = "printf 'hello, world\\n' > /workspace/greeting.txt"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    write_task(tmp_path / "task")
    return runnable_task(tmp_path / "task")


@asynccontextmanager
async def serving(
    task: Task, topology: Topology, *, config: RunConfig = LOCAL, jobs_dir: Path | None = None
) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve a task in a topology; yield a client of the server that keeps cookies."""
    app = create_resources_app(
        SessionManager.running(config, jobs_dir=jobs_dir),
        [task],
        secret=b"a secret of tests only",
        topology=topology,
        broker_tokens=[TOKEN],
    )
    async with (
        serving_app(app, "/sandboxes") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        yield http


async def seed(http: httpx.AsyncClient, task: Task) -> dict[str, Any]:
    """Seed a session; return the reply."""
    http.cookies.clear()
    reply = await http.post("/seed_session", json=make_row(task, ()))
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def verify(http: httpx.AsyncClient, task: Task) -> float:
    """Verify the session of the cookie; return its reward."""
    reply = await http.post("/verify", json=make_row(task, ()))
    assert reply.status_code == 200, reply.text
    return float(reply.json()["reward"])


@in_loop
async def test_without_a_sandbox_an_agent_has_its_answer_alone(task: Task) -> None:
    async with serving(task, "none") as http:
        reply = await seed(http, task)
        descriptor = SessionDescriptor.model_validate(reply["benchflow"])
        assert (descriptor.topology, descriptor.sandbox, descriptor.mcp) == ("none", None, None)
        assert not {"mcp", "sandbox_access"} & set(reply)
        denied = await http.post("/bash", json={"command": SOLVE})
        assert denied.status_code == 403
        assert await verify(http, task) == 0.0


@in_loop
async def test_an_agent_in_the_sandbox_is_graded_and_its_reference_ends_then(task: Task) -> None:
    async with serving(task, "agent-in-env") as http:
        reply = await seed(http, task)
        access = reply["sandbox_access"]
        reference = access["connection"]["descriptor"]
        assert access["connection"]["provider_config_ref"] == "sandbox"
        assert access["workdir"] == "/workspace"
        descriptor = SessionDescriptor.model_validate(reply["benchflow"])
        assert descriptor.sandbox is not None
        assert descriptor.sandbox.ref is not None
        assert descriptor.sandbox.ref.ref == reference["ref"]
        assert reference["token"] not in repr(descriptor)
        client = BrokerClient(f"{http.base_url}/sandboxes", reference["token"])
        assert (await client.lease(reference["ref"])).rollout == descriptor.rollout
        await client.exec(reference["ref"], CommandRequest(cmd=SOLVE))

        async def sleep() -> None:
            with pytest.raises(SandboxLostError):
                await client.exec(reference["ref"], CommandRequest(cmd="touch /tmp/s; sleep 600"))

        async with asyncio.TaskGroup() as calls:
            calls.create_task(sleep())
            await client.exec(
                reference["ref"],
                CommandRequest(cmd="until [ -e /tmp/s ]; do sleep 0.01; done"),
            )
            assert await verify(http, task) == 1.0
        with pytest.raises(SandboxLostError):
            await client.exec(reference["ref"], CommandRequest(cmd="true"))
        await client.aclose()


@in_loop
async def test_what_an_agent_in_the_sandbox_does_is_steps_without_secrets(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-a-secret-of-the-operator"
    monkeypatch.setenv("OPERATOR_KEY", secret)
    local, fetched = tmp_path / "local", tmp_path / "fetched"
    local.write_text("hello, world\n")
    config = LOCAL.model_copy(update={"model": ModelConfig(api_key_env="OPERATOR_KEY")})
    async with serving(task, "agent-in-env", config=config, jobs_dir=tmp_path / "jobs") as http:
        reference = (await seed(http, task))["sandbox_access"]["connection"]["descriptor"]
        client = BrokerClient(f"{http.base_url}/sandboxes", reference["token"])
        ref = reference["ref"]
        await client.upload(ref, local, "greeting.txt")
        await client.download(ref, "greeting.txt", fetched)
        command = CommandRequest(cmd=f"echo {secret}; exit 3", env={"NAME": "a value"})
        assert (await client.exec(ref, command)).exit_code == 3
        await client.status(ref)
        with pytest.raises(BenchFlowError):
            await client.download(ref, "/root/none", fetched)

        async def sleep() -> None:
            with pytest.raises(SandboxLostError):
                await client.exec(ref, CommandRequest(cmd="touch /tmp/s; sleep 600"))

        async with asyncio.TaskGroup() as calls:
            calls.create_task(sleep())
            wait = "until [ -e /tmp/s ]; do sleep 0.01; done"
            await client.exec(ref, CommandRequest(cmd=wait))
            assert await verify(http, task) == 1.0
        await client.aclose()
    [directory] = (tmp_path / "jobs").iterdir()
    rollout = StoredRollout(directory)
    assert rollout.record is not None
    assert rollout.record.grading == "hermetic"
    steps = [n.step for n in rollout.tree.nodes if n.step is not None]
    seen = [(s.tool_calls[0].name, s.observations[0].status) for s in steps if s.tool_calls]
    assert seen == [
        ("upload", "completed"),
        ("download", "completed"),
        ("exec", "failed"),
        ("download", "failed"),
        ("exec", "completed"),
        ("exec", "failed"),
    ]
    assert steps[0].tool_calls[0].raw_input == {"path": "/workspace/greeting.txt", "bytes": 13}
    assert "[exit code 3]" in steps[2].observations[0].content
    assert "cut by the end" in steps[5].observations[0].content
    events = (directory / "events.jsonl").read_text()
    assert secret not in events
    assert "a value" not in events


@in_loop
async def test_the_reference_of_one_session_does_not_open_another(task: Task) -> None:
    async with serving(task, "agent-in-env") as http:
        first = (await seed(http, task))["sandbox_access"]["connection"]["descriptor"]
        second = (await seed(http, task))["sandbox_access"]["connection"]["descriptor"]
        client = BrokerClient(f"{http.base_url}/sandboxes", first["token"])
        with pytest.raises(SandboxLostError):
            await client.exec(second["ref"], CommandRequest(cmd=SOLVE))
        await client.exec(first["ref"], CommandRequest(cmd=SOLVE))
        await client.aclose()
        # The cookie is of the second session.
        assert await verify(http, task) == 0.0


@in_loop
async def test_an_outer_program_finds_the_sandbox_by_the_rollout_and_an_agent_does_not(
    task: Task,
) -> None:
    async with serving(task, "whole-interaction") as http:
        reply = await seed(http, task)
        descriptor = SessionDescriptor.model_validate(reply["benchflow"])
        assert descriptor.sandbox is not None
        assert descriptor.sandbox.ref is None
        assert descriptor.sandbox.spec is not None
        assert descriptor.mcp is None
        assert "sandbox_access" not in reply
        assert (await http.post("/bash", json={"command": SOLVE})).status_code == 403
        outer = BrokerClient(f"{http.base_url}/sandboxes", TOKEN)
        request = LeaseRequest(spec=descriptor.sandbox.spec, identity=descriptor.identity)
        lease = await outer.acquire(request)
        await outer.exec(lease.ref, CommandRequest(cmd=SOLVE))
        unknown = LeaseRequest(spec=SandboxSpec(), identity=RolloutIdentity(rollout="unknown"))
        with pytest.raises(BenchFlowError, match="makes none"):
            await outer.acquire(unknown)
        assert await verify(http, task) == 1.0
        await outer.aclose()


@in_loop
async def test_a_program_in_the_sandbox_cannot_start_a_container_of_its_own(task: Task) -> None:
    """The agent gets neither new namespaces nor the engine of the host."""
    async with serving(task, "whole-interaction") as http:
        reply = await seed(http, task)
        descriptor = SessionDescriptor.model_validate(reply["benchflow"])
        assert descriptor.sandbox is not None
        assert descriptor.sandbox.spec is not None
        outer = BrokerClient(f"{http.base_url}/sandboxes", TOKEN)
        request = LeaseRequest(spec=descriptor.sandbox.spec, identity=descriptor.identity)
        lease = await outer.acquire(request)
        for kinds in ("--user --map-root-user --mount", "--mount --pid --fork"):
            done = await outer.exec(lease.ref, CommandRequest(cmd=f"unshare {kinds} true"))
            assert "Operation not permitted" in done.stderr
        sockets = "ls /var/run/docker.sock /run/containerd/containerd.sock"
        done = await outer.exec(lease.ref, CommandRequest(cmd=sockets))
        assert done.stdout == ""
        await outer.aclose()


def episode(task: Task, name: str = "session-1") -> dict[str, Any]:
    return {
        "resources_session_id": name,
        "episode_id": {"rollout_id": "rollout-1", "attempt": 0},
        "task_id": {"taskset": "ours", "task_id": task.id},
        "task_data": {"verifier_metadata": {"task_id": task.id}},
    }


@in_loop
async def test_an_episode_is_seeded_once_verified_and_closed(task: Task) -> None:
    async with serving(task, "agent-in-env") as http:
        row = episode(task)
        first = await http.post("/seed_session", json=row)
        cookie = http.cookies[COOKIE]
        again = await http.post("/seed_session", json=row)
        assert first.json() == again.json()
        assert http.cookies[COOKIE] == cookie
        assert set(first.json()) == {
            "resources_session_id", "resources_tools", "sandbox_access",
        }  # fmt: skip
        other = await http.post("/seed_session", json=row | {"task_id": {}})
        assert other.status_code == 409
        http.cookies.set(COOKIE, cookie)
        assert await verify(http, task) == 0.0
        end = {key: row[key] for key in ("resources_session_id", "episode_id")}
        wrong = end | {"episode_id": {"rollout_id": "other", "attempt": 0}}
        assert (await http.post("/close_session", json=wrong)).status_code == 409
        for _ in range(2):
            closed = await http.post("/close_session", json=end)
            assert closed.json() == {"resources_session_id": "session-1"}
        assert (await http.post("/seed_session", json=row)).status_code == 409


@in_loop
async def test_a_closed_episode_cannot_begin_later_and_has_no_reward(task: Task) -> None:
    async with serving(task, "agent-in-env") as http:
        row = episode(task, "late")
        end = {key: row[key] for key in ("resources_session_id", "episode_id")}
        assert (await http.post("/close_session", json=end)).status_code == 200
        assert (await http.post("/seed_session", json=row)).status_code == 409
        row = episode(task)
        reply = (await http.post("/seed_session", json=row)).json()
        end = {key: row[key] for key in ("resources_session_id", "episode_id")}
        await http.post("/close_session", json=end)
        late = await http.post("/verify", json=make_row(task, ()))
        assert late.status_code == 404
        reference = reply["sandbox_access"]["connection"]["descriptor"]
        client = BrokerClient(f"{http.base_url}/sandboxes", reference["token"])
        with pytest.raises(SandboxLostError):
            await client.exec(reference["ref"], CommandRequest(cmd="true"))
        await client.aclose()
        names: list[Any] = [None, "", 1, ["x"]]
        for name in names:
            bad = await http.post("/seed_session", json=row | {"resources_session_id": name})
            assert bad.status_code == 400


@in_loop
async def test_a_session_whose_sandbox_an_agent_has_is_not_forked(task: Task) -> None:
    async with serving(task, "agent-in-env") as http:
        await seed(http, task)
        refused = await http.post("/benchflow/fork", json={"n": 2})
        assert refused.status_code == 409
        assert refused.json()["error"]["type"] == "ForkRefusedError"
        assert await verify(http, task) == 0.0
