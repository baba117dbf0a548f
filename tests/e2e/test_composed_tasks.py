"""Harbor tasks of several containers, from the command line, on a real engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

COMPOSE = """
services:
  main:
    depends_on:
      web: {condition: service_healthy}
    environment: [WHERE=http://web:8000]
  web:
    build: ./web
    healthcheck:
      test: [CMD, python3, -c, "import urllib.request as u; u.urlopen('http://localhost:8000')"]
      interval: 200ms
      timeout: 5s
      retries: 50
"""
SERVER = """
import http.server

class Pages(http.server.BaseHTTPRequestHandler):
    pages = {"/": b"index", "/page": b"hello"}

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.pages.get(self.path, b"none"))

    def do_PUT(self):
        self.pages[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

http.server.HTTPServer(("", 8000), Pages).serve_forever()
"""
ASK = """python3 -c "
import os
from urllib.request import Request, urlopen
where = os.environ.get('WHERE', 'http://web:8000') + '{path}'
print(urlopen(Request(where, {data}, method='{method}')).read().decode())
" """
SOLVE = f"""#!/bin/sh
set -e
{ASK.format(path="/page", data=None, method="GET")} > page
{ASK.format(path="/told", data="open('page', 'rb').read()", method="PUT")}
(setsid sleep 86395 &)
"""
CHECK = f"""#!/bin/sh
set -ex
grep -qx hello page
{ASK.format(path="/told", data=None, method="GET")} | grep -qx hello
! grep -la 8639[5] /proc/[0-9]*/cmdline
echo 1 > /logs/verifier/reward.txt
"""


STEPS = """
[environment]
network_mode = "no-network"
[[steps]]
name = "one"
[[steps]]
name = "two"
"""
NOTE = f"""#!/bin/sh
set -e
# What a step left runs on in the next one, after its copy was graded.
[ ! -e page ] || pgrep -f 'sleep 8639[6]'
{ASK.format(path="/page", data=None, method="GET")} >> page
(setsid sleep 86396 &)
"""
NOTED = f"""#!/bin/sh
set -ex
[ "$(grep -cx hello page)" = "$(cat /tests/number)" ]
{ASK.format(path="/page", data=None, method="GET")} | grep -qx hello
! grep -la 8639[6] /proc/[0-9]*/cmdline
echo 1 > /logs/verifier/reward.txt
"""


@pytest.fixture
def tasks(image: str, tmp_path: Path) -> Path:
    parts = {
        "environment/Dockerfile": f"FROM {image}\nWORKDIR /srv\n",
        "environment/docker-compose.yaml": COMPOSE,
        "environment/web/Dockerfile": f'FROM {image}\nCOPY s.py /\nCMD ["python3", "/s.py"]\n',
        "environment/web/s.py": SERVER,
    }
    told = {
        "task.toml": '[environment]\nnetwork_mode = "no-network"\n',
        "instruction.md": "Fetch the page, and tell the server what it says.\n",
        "solution/solve.sh": SOLVE,
        "tests/test.sh": CHECK,
    }
    noted = {"task.toml": STEPS, "solution/solve.sh": NOTE, "tests/test.sh": NOTED}
    for number, step in enumerate(("one", "two"), 1):
        noted[f"steps/{step}/instruction.md"] = "Note what the page says.\n"
        noted[f"steps/{step}/tests/number"] = f"{number}\n"
    write(tmp_path / "tasks" / "told", {**parts, **told})
    write(tmp_path / "steps" / "noted", {**parts, **noted})
    return tmp_path / "tasks"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_services_are_graded_alive_and_the_agents_processes_dead(
    tasks: Path, bench: Callable[..., Any]
) -> None:
    jobs = tasks.parent / "jobs"
    common = ("--tasks-dir", tasks, "--sandbox", "docker", "--json", "--jobs-dir", jobs)
    solved = bench("eval", "create", *common, "--agent", "oracle")
    idle = bench("eval", "create", *common, "--agent", "nop", code=1)
    assert [one["reward"] for one in solved["records"]] == [1.0], solved
    assert solved["records"][0]["images"].keys() == {"main", "web"}
    # The test ends early, and so leaves no reward: an error, never a 0.
    assert [one["reward"] for one in idle["records"]] == [None], idle
    told = {path.read_text().count('"PUT /told') for path in jobs.rglob("services/web.txt")}
    assert told == {0, 1}
    api = docker.APIClient(version="1.41")
    try:
        ids = {one["rollout_id"] for one in (*solved["records"], *idle["records"])}
        left = [
            label
            for each in (*api.containers(all=True), *api.networks())
            if (label := (each["Labels"] or {}).get("benchflow.labels.benchflow.rollout")) in ids
        ]
    finally:
        api.close()
    assert left == []


def test_each_step_is_graded_in_a_copy_beside_the_services_and_the_box_goes_on(
    tasks: Path, bench: Callable[..., Any]
) -> None:
    steps = tasks.parent / "steps"
    ran = bench(
        "eval", "create", "--tasks-dir", steps, "--sandbox", "docker", "--agent", "oracle", "--json"
    )
    assert [one["reward"] for one in ran["records"]] == [1.0], ran
