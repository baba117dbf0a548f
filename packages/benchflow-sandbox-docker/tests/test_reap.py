import asyncio
import json
import subprocess
import sys

import docker
import pytest
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_docker import DockerProvider

RUNNER = """
import asyncio, json, sys
from pathlib import Path
from benchflow_contracts import RolloutIdentity, SandboxSpec
from benchflow_sandbox_docker import DockerProvider

async def main():
    provider = DockerProvider(image=sys.argv[1], store=Path(sys.argv[2]))
    sandbox = await provider.create(SandboxSpec(), identity=RolloutIdentity(scope="killed"))
    await sandbox.spawn(["sleep", "86399"])
    image = await sandbox.snapshot()
    print(json.dumps({"id": sandbox.id, "image": image.ref}), flush=True)
    if sys.argv[3] == "frozen":
        async with sandbox.freeze():
            print(flush=True)
            await asyncio.sleep(1000)
    print(flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.fixture
def killed(image, tmp_path):
    """A runner that was killed with SIGKILL, and what it had made."""
    started = []

    def kill(state):
        command = [sys.executable, "-c", RUNNER, image, str(tmp_path / "store"), state]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        found = json.loads(process.stdout.readline())
        assert process.stdout.readline()
        process.kill()
        process.wait()
        process.stdout.close()
        return found

    yield kill
    for process in started:
        process.kill()
        process.wait()


def reap(store, **policy):
    async def main():
        async with DockerProvider(store=store) as provider:
            dead = [r.id async for r in provider.sandboxes() if not r.owner_alive]
            return dead, [r.id for r in await provider.reap(ReapPolicy(**policy))]

    return asyncio.run(main())


def test_only_files_of_a_killed_runner_are_removed(killed, api, image, tmp_path):
    store = tmp_path / "store"
    left = killed("running")
    # Without its runner the container has ended by itself.
    assert api.wait(f"benchflow-{left['id']}", timeout=30)["StatusCode"] == 1
    carried = json.loads(api.inspect_image(left["image"])["Config"]["Labels"]["benchflow.labels"])
    assert carried == {"benchflow.scope": "killed"}
    foreign = api.create_container(image, ["sleep", "1"])["Id"]
    # One that somebody starts from our snapshot, and names like ours, has our labels.
    lookalike = api.create_container(left["image"], name=f"benchflow-mine-{left['id']}")["Id"]
    try:
        dead, would = reap(store, dry_run=True)
        assert left["id"] in dead
        assert left["id"] in would
        assert reap(store, scope="another")[1] == []
        assert left["id"] in reap(store, scope="killed")[1]
        names = {each["Id"] for each in api.containers(all=True)}
        assert {foreign, lookalike} <= names
        # What somebody else uses stays until they do not.
        assert api.inspect_image(left["image"])
    finally:
        api.remove_container(foreign, v=True)
        api.remove_container(lookalike, v=True)
    assert left["id"] not in reap(store)[0]
    with pytest.raises(docker.errors.ImageNotFound):
        api.inspect_image(left["image"])
    assert list(store.iterdir()) == []


def test_a_container_that_stood_still_when_its_runner_was_killed_is_removed(killed, api, tmp_path):
    left = killed("frozen")
    state = api.inspect_container(f"benchflow-{left['id']}")["State"]
    assert state["Status"] == "paused"
    assert left["id"] in reap(tmp_path / "store")[1]
    with pytest.raises(docker.errors.NotFound):
        api.inspect_container(f"benchflow-{left['id']}")
