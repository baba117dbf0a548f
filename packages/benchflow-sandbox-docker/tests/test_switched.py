"""The public network of a sandbox that has services, on and off while both run."""

import docker
import pytest
from benchflow_contracts import ServiceSpec
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_docker.services import networks
from watching import until

SERVE = ("python3", "-u", "-m", "http.server", "8000", "--directory", "/srv")
LOOK = """
import socket, sys
for host in sys.argv[1:]:
    try:
        socket.create_connection((host, 8000), timeout=2).close()
        print(host)
    except OSError:
        continue
"""
NAME = "import socket; print(socket.gethostbyname('some.example.org'))"
RESOLVER = """
import socket
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.bind(("", 53))
print("up", flush=True)
while True:
    query, who = asked.recvfrom(512)
    answer = bytes.fromhex("c00c000100010000003c00040a010203")
    counts = bytes.fromhex("818000010001" + "0000" * 2)
    asked.sendto(query[:2] + counts + query[12:] + answer, who)
    print("asked", flush=True)
"""


@pytest.fixture
def outside(image):
    """Run a server in a container of somebody else's on the engine's bridge."""
    client, made = docker.from_env(), []

    def run(*command):
        made.append(client.containers.run(image, list(command), detach=True))
        until("what it says when it is up", made[-1].logs)
        made[-1].reload()
        return made[-1], made[-1].attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]

    yield run
    for container in made:
        container.remove(force=True)
    client.close()


def beside(image, **rest):
    db = ServiceSpec(name="db", image=image, command=("sh", "-c", f"mkdir /srv; {' '.join(SERVE)}"))
    return SandboxSpec(services=(db,), switches=("none", "public"), **rest)


def test_services_stay_in_reach_while_the_public_comes_and_goes(with_provider, image, outside):
    _, address = outside("sh", "-c", f"mkdir -p /srv; {' '.join(SERVE)}")

    async def check(provider):
        box = await provider.create(beside(image, network="public"))

        async def reached():
            return (await box.exec(["python3", "-I", "-c", LOOK, "db", address])).stdout.split()

        waiting = "until python3 -c 'import socket as s; s.create_connection((\"db\", 8000))'"
        assert (await box.exec(f"{waiting} 2>/dev/null; do sleep 0.1; done", timeout=30)).ok
        assert await reached() == ["db", address]
        await box.switch_network("none")
        assert await reached() == ["db"]
        await box.restore(await box.snapshot())
        assert await reached() == ["db"]
        await box.switch_network("public")
        assert await reached() == ["db", address]

    with_provider(check)


def test_no_name_is_asked_outside_while_nothing_there_is_reached(
    with_provider, image, outside, monkeypatch, tmp_path
):
    resolver, address = outside("python3", "-c", RESOLVER)
    known = tmp_path / "resolv.conf"
    known.write_text(f"nameserver 127.0.0.53\nnameserver {address}\n")
    monkeypatch.setattr(networks, "RESOLVERS", known)

    async def check(provider):
        box = await provider.create(beside(image, network="none"))
        ask = ["python3", "-I", "-c", NAME]
        assert not (await box.exec(ask)).ok
        assert resolver.logs() == b"up\n"
        await box.switch_network("public")
        assert (await box.exec(ask)).stdout == "10.1.2.3\n"
        await box.switch_network("none")
        before = resolver.logs()
        assert not (await box.exec(ask)).ok
        assert resolver.logs() == before

    with_provider(check)
