"""`bench serve` on a disk that is full, and its restart after that. A real file system."""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from faulted_host import FaultedHost, fill
from serve_process import TASK, TASKS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def host() -> Generator[FaultedHost]:
    faulted = FaultedHost()
    faulted.inside("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", faulted.home / "jobs")
    yield faulted
    faulted.close()


@contextmanager
def serving(host: FaultedHost) -> Generator[httpx.Client]:
    """Serve a directory of the file system. At the end, the server is killed."""
    words = ("--dir", host.home / "jobs/s", "--port", "0", "--json", "--slots", "1")
    runner = host.start("serve", TASKS, *words)
    assert runner.stdout is not None
    ready = json.loads(runner.stdout.readline())
    token = host.seen(Path(ready["token_file"])).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=ready["url"], headers=headers, timeout=60) as client:
        yield client
        assert runner.poll() is None, "the server has ended by itself"
        runner.kill()
        runner.wait()


def submit(client: httpx.Client) -> str:
    given = client.post("/v1/rollouts", json={"task": TASK})
    assert given.status_code == 202, given.text
    ident: str = given.json()["id"]
    return ident


def wait(client: httpx.Client, ident: str, state: str = "ended") -> dict[str, Any]:
    until = time.monotonic() + 100
    while (found := client.get(f"/v1/rollouts/{ident}").json())["state"] != state:
        assert time.monotonic() < until, found
        time.sleep(0.05)
    result: dict[str, Any] = found
    return result


def test_a_full_disk_loses_no_result_and_runs_nothing_twice(host: FaultedHost) -> None:
    filler = host.seen(host.home / "jobs") / "filler"
    attempts = host.seen(host.home / "jobs/s/rollouts")
    with serving(host) as client:
        done = submit(client)
        assert wait(client, done)["outcome"] == "scored"
        before = client.get(f"/v1/rollouts/{done}/result").json()
        running, queued = submit(client), submit(client)
        wait(client, running, "running")
        fill(filler)
        cut = wait(client, running)
        assert (cut["outcome"], cut["error"]["boundary"]) == ("unscored", "store")
        refused = client.post("/v1/rollouts", json={"task": TASK})
        assert (refused.status_code, refused.json()["type"]) == (503, "DiskFullError")
        assert client.get(f"/v1/rollouts/{done}/result").json() == before
        assert client.post(f"/v1/rollouts/{done}/ack").status_code == 503
        assert not client.get(f"/v1/rollouts/{done}").json()["is_acknowledged"]
        assert client.get(f"/v1/rollouts/{queued}").json()["state"] == "queued"
        assert len(list(attempts.iterdir())) == 2
        filler.unlink()
        # The server continues without a restart, and followers get the late events.
        assert wait(client, queued)["outcome"] == "scored"
        kinds = client.get(f"/v1/rollouts/{running}/events").text
        assert "event: ended" in kinds
        last = submit(client)
        wait(client, last, "running")
        fill(filler)
        wait(client, last)
    filler.unlink()
    with serving(host) as client:
        assert client.get(f"/v1/rollouts/{done}/result").json() == before
        assert wait(client, running)["outcome"] == "unscored"
        assert wait(client, last)["outcome"] in {"lost", "unscored"}
        assert wait(client, queued)["reward"] == 1.0
        assert len(list(attempts.iterdir())) == 4
        assert client.post(f"/v1/rollouts/{done}/ack").status_code == 200
        assert client.get("/v1/capacity").json()["sandboxes"] == 0
