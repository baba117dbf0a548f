"""Model calls without a tunnel: SDKs of clouds against our servers over local sandboxes.

Nothing here runs on a cloud. The servers change headers over plain HTTP on the loopback.
"""

import asyncio
import importlib
import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.http import respond, serving
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from secret_search import places_of

CLAWSBENCH = Path(__file__).parents[2] / "benchmarks/clawsbench"
TASK = CLAWSBENCH / "tasks/archive-newsletters"
IMAGE = "clawsbench-base:latest"
IMAGES = {IMAGE: SandboxSpec(image=IMAGE, image_search=(str(CLAWSBENCH / "images"),))}
ENVIRONMENT = r"cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep 'OPENAI\|SSL_CERT'"
DEFAULT_IMAGES = ["base", "default", "debian:bookworm-slim"]
NETWORKS = {"modal": "public"}
"""Modal adds headers with this network only."""


def account_of(cloud, local, images, port):
    """Serve an account whose sandboxes reach the port of this machine; yield its provider."""
    backend = importlib.import_module(f"remote_backends.{cloud}")
    return backend.account(local, images, {"127.0.0.1": port})


def free_port() -> int:
    """Return a port that no client of another program gets: such ports begin at 32768."""
    for port in random.sample(range(20000, 30000), 50):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")


def solve_and_look(request: ModelRequest) -> ModelReply:
    """Solve the task, then print the variables of each process of the agent's user."""
    commands = [(TASK / "solution/solve.sh").read_text(), ENVIRONMENT]
    seen = len(request.tool_results)
    if seen == len(commands):
        return ModelReply(text="Done.")
    return ModelReply(tools=(ToolUse("shell", {"command": commands[seen]}),))


def everything_in(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def task_for(cloud):
    """Return the task, with the network in which the cloud adds headers."""
    task = runnable_task(TASK)
    if cloud not in NETWORKS:
        return task
    environment = task.config.environment.model_copy(update={"network": NETWORKS[cloud]})
    config = task.config.model_copy(update={"environment": environment})
    return task.model_copy(update={"config": config})


async def roll_out(cloud, mode, llm, tmp_path, *, before=lambda _: None, **options):
    """Run the task with the policy agent; return the result, the tokens and the server."""
    secrets, port = [], free_port()
    async with (
        LocalProvider() as local,
        account_of(cloud, local, IMAGES, port) as (provider, server),
    ):
        before(server)
        create = provider.create

        async def watched(spec, **options):
            secrets.extend(door.endpoint.bearer for door in spec.doors)
            return await create(spec, **options)

        provider.create = watched
        config = run_config(
            agent="policy",
            model="scripted",
            base_url=f"{llm.url}/v1",
            model_access=mode,
            gateway_url=f"http://127.0.0.1:{port}",
            gateway_bind=f"127.0.0.1:{port}",
            **options,
        )
        result = await run_in(provider, task_for(cloud), config, directory=tmp_path / "r")
        assert server.made == {}
        if cloud == "daytona":
            assert server.secrets.stored == {}
    return result, secrets


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("cloud", "mode"),
    [("e2b", "egress"), ("e2b", "token"), ("daytona", "egress"), ("modal", "egress")],
)
def test_an_agent_reaches_the_gateway_by_its_url_and_is_scored(cloud, mode, tmp_path):
    with ScriptedLlm(solve_and_look) as llm:
        result, secrets = asyncio.run(roll_out(cloud, mode, llm, tmp_path))
        assert llm.requests, result.record.error
        variables = llm.requests[-1].tool_results[-1]
    assert (result.record.status, result.reward) == ("completed", 1.0)
    assert result.tree.doors == {"model": mode}
    (secret,) = secrets
    assert "OPENAI_BASE_URL=http://127.0.0.1:" in variables
    assert "/r/r/n/" in variables
    assert (secret in variables) == (mode == "token")
    assert ("OPENAI_API_KEY=dtn_secret_" in variables) == (cloud == "daytona")
    assert ("SSL_CERT_FILE=/etc/modal/" in variables) == (cloud == "modal")
    (leaf,) = result.tree.leaves
    mark = "a token for the model was in the sandbox"
    integrity = leaf.results["reward"].meta.get("integrity", {})
    assert integrity.get("credential") == (mark if mode == "token" else None)
    assert secret.split(".")[0].encode() not in everything_in(tmp_path)


@pytest.mark.timeout(240)
def test_each_child_of_a_fork_has_a_token_of_its_own(tmp_path):
    with ScriptedLlm(solve_and_look) as llm:
        work = roll_out("modal", "egress", llm, tmp_path, branch="group", branch_n=2)
        result, secrets = asyncio.run(work)
    assert [leaf.reward for leaf in result.tree.leaves] == [1.0, 1.0], result.record.error
    (fork,) = [node.branch for node in result.tree.nodes if node.branch]
    assert fork.fidelity == "state"
    assert len({*secrets}) == len(secrets) >= 2
    assert not any(each.split(".")[0].encode() in everything_in(tmp_path) for each in secrets)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["egress", "token"])
def test_a_cloud_with_live_forks_refuses_one_before_a_sandbox_exists(mode, tmp_path):
    with ScriptedLlm(solve_and_look) as llm:
        result, secrets = asyncio.run(roll_out("e2b", mode, llm, tmp_path, branch="group"))
        assert llm.requests == []
    assert (result.record.status, result.reward, secrets) == ("failed", None, [])
    assert "live fork" in result.record.error.message


@pytest.mark.timeout(120)
def test_a_cloud_that_does_not_add_the_token_gives_no_reward(tmp_path):
    def never_replace(server):
        server.secrets.replaces = False

    with ScriptedLlm(solve_and_look) as llm:
        work = roll_out("daytona", "egress", llm, tmp_path, before=never_replace)
        result, _ = asyncio.run(work)
        assert llm.requests == []
    assert (result.record.status, result.reward) == ("failed", None)
    assert "without the token" in result.record.error.message


CALL = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers=dict(a.split("=", 1) for a in sys.argv[2:]))
print(urllib.request.urlopen(request, timeout=30).status, flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cloud", ["e2b", "daytona", "modal"])
def test_the_token_is_added_outside_and_is_nowhere_inside(cloud):
    secret, received = "s3cr3t-0f-th3-d00r-" + "x7" * 12, []

    async def upstream(scope, receive, send):
        received.append(dict(scope["headers"]))
        await respond(send, 200, {})

    async def main():
        async with LocalProvider() as local, serving(upstream) as url:
            images = dict.fromkeys(DEFAULT_IMAGES, SandboxSpec())
            port = int(url.rpartition(":")[2])
            async with account_of(cloud, local, images, port) as (provider, server):
                headers = {"Authorization": f"Bearer {secret}"}
                door = Door(upstream=f"{url}/r", headers=headers, path="egress")
                network = NETWORKS.get(cloud, "model-only")
                spec = SandboxSpec(network=network, doors=(door,))
                sandbox = await provider.create(spec)
                inside = sandbox.spec.door("model").inside
                sent = [f"{name}={value}" for name, value in inside.headers.items()]
                process = await sandbox.spawn(["python3", "-c", CALL, inside.url, *sent])
                assert await process.stdout.read() == b"200\n"
                # Also the root of the cloud's own sandbox, which is around that of the link.
                places = await places_of(secret, server.made[sandbox.cloud_id].sandbox)
                await sandbox.teardown()
                assert server.made == {}
                return places

    assert asyncio.run(main()) == []
    (headers,) = received
    assert headers[b"authorization"] == f"Bearer {secret}".encode()
