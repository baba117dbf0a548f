"""Harbor tasks whose phases have other networks and users, from the command line, for real."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from watching import until

ECHO = """
import socketserver

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

server = socketserver.ThreadingTCPServer(("", 8000), Echo)
print("up", flush=True)
server.serve_forever()
"""
HOLD = """
import socket, sys, time
talk = socket.create_connection((sys.argv[1], 8000), timeout=20)
while True:
    talk.sendall(b"ping\\n")
    if talk.recv(64):
        open(sys.argv[2], "a").write("x")
    time.sleep(0.05)
"""
"""Counts in a file what comes back by a connection that it holds."""
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 8000), timeout=2).close()
    print("reached")
except OSError:
    print("not")
"""
IMAGE = """FROM {image}
RUN useradd -u 2001 alice && useradd -u 2002 bob && mkdir -p /srv && chmod 777 /srv
COPY reach.py hold.py /opt/
WORKDIR /srv
"""
READY = "{reach} > setup; (setsid python3 /opt/hold.py {host} /srv/of-setup > /dev/null 2>&1 &); "
READY += "until [ -s of-setup ]; do sleep 0.1; done"
ALONE = """#!/bin/sh
id -un > who
{reach} > solved
before=$(wc -c < of-setup)
(setsid python3 -c 'import time
while True: open("/srv/beats", "a").write("x"); time.sleep(0.05)' > /dev/null 2>&1 &)
until [ -s beats ]; do sleep 0.1; done
sleep 0.5
[ "$before" = "$(wc -c < of-setup)" ] && echo cut > held
"""
WIDER = """#!/bin/sh
set -ex
grep -qx alice who
[ "$(id -un)" = root ]
grep -qx reached setup
grep -qx not solved
grep -qx cut held
[ "$({reach})" = reached ]
! grep -la "srv/beat[s]" /proc/[0-9]*/cmdline
echo 1 > /logs/verifier/reward.txt
"""
STEP = """#!/bin/sh
set -ex
grep -qx {user} who
grep -qx {found} solved
grep -qx "{user} reached" ready
echo 1 > /logs/verifier/reward.txt
"""


@pytest.fixture
def host(image: str) -> Iterator[str]:
    """The address of a server on the engine's own bridge."""
    client = docker.from_env()
    server = client.containers.run(image, ["python3", "-c", ECHO], detach=True)
    try:
        until("the server", server.logs)
        server.reload()
        yield server.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
    finally:
        server.remove(force=True)
        client.close()


def write(task: Path, files: dict[str, str], image: str, host: str) -> Path:
    reach = f"python3 /opt/reach.py {host}"
    made = {
        "environment/Dockerfile": IMAGE.format(image=image),
        "environment/reach.py": REACH,
        "environment/hold.py": HOLD,
    }
    for name, text in {**made, **files}.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{reach}", reach).replace("{host}", host))
    return task


def test_an_agent_is_cut_off_and_what_it_left_gets_no_more_when_tests_do(
    bench: Callable[..., Any], tmp_path: Path, image: str, host: str
) -> None:
    toml = f"""
[agent]
network_mode = "no-network"
user = "alice"
[environment.healthcheck]
command = "{READY}"
"""
    files = {"task.toml": toml, "instruction.md": "Be.\n", "solution/solve.sh": ALONE}
    task = write(tmp_path / "task", {**files, "tests/test.sh": WIDER}, image, host)
    options = ("--agent", "oracle", "--sandbox", "docker", "--isolation", "shared", "--json")
    record = bench("run", task, *options)
    assert (record["reward"], record["grading"]) == (1.0, "shared"), record


def test_each_step_has_its_own_network_and_user_in_one_box(
    bench: Callable[..., Any], tmp_path: Path, image: str, host: str
) -> None:
    toml = """
[[steps]]
name = "first"
agent = { network_mode = "no-network", user = "alice" }
[[steps]]
name = "second"
agent = { user = 2002 }
"""
    files = {"task.toml": toml}
    for step, user, found in (("first", "alice", "not"), ("second", "bob", "reached")):
        files |= {
            f"steps/{step}/instruction.md": "Be.\n",
            f"steps/{step}/workdir/setup.sh": 'echo "$(id -un) $({reach})" > ready\n',
            f"steps/{step}/solution/solve.sh": (
                "#!/bin/sh\nrm -f who solved; id -un > who; {reach} > solved; rm -f ready.old\n"
                "mv ready ready.old; cp ready.old ready; chmod 666 ready who solved\n"
            ),
            f"steps/{step}/tests/test.sh": STEP.replace("{user}", user).replace("{found}", found),
        }
    task = write(tmp_path / "task", files, image, host)
    record = bench("run", task, "--agent", "oracle", "--sandbox", "docker", "--json")
    assert (record["reward"], record["grading"]) == (1.0, "twin"), record
