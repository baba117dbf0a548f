"""The same task in boxes of this kernel and in containers: the same verdict, part by part."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import SandboxProvider
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import RunResult, run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider
from docker_world import CLAWS, clawsbench_in_engine

pytestmark = pytest.mark.slow
TASKS = sorted({path.parent.name for path in CLAWS.glob("tasks/*/task.toml")})
ALONE = '[environment]\nnetwork_mode = "no-network"\n'
WRITES = "#!/bin/sh\necho {} > /app/answer\n"
CHECKS = '#!/bin/sh\nV=/logs/verifier\nok() { test "$(cat /app/answer)" = 42; }\n'
SERVE = "cd /app && python3 -m http.server 8000 > /dev/null 2>&1 &\n"
ASKS = """python3 - << END
import time, urllib.error, urllib.request
for attempt in range(50):
    try:
        found = urllib.request.urlopen("http://127.0.0.1:8000/answer").read()
    except urllib.error.HTTPError:
        found = b""
    except OSError:
        time.sleep(0.1)
        continue
    open("$V/reward.txt", "w").write("1" if found == b"42\\n" else "0")
    break
END
"""
HARBOR = {
    "entrypoint-serves": {
        "docker": f"RUN printf '#!/bin/sh\\n{SERVE.strip()}\\nexec \"$@\"\\n' > /e; chmod 755 /e\n"
        'ENTRYPOINT ["/e"]\n',
        "test": ASKS,
    },
    "solution-serves": {"solve": WRITES + SERVE, "test": "[ -e answer ] || exit 1\n" + ASKS},
    "one-number": {"test": "ok && echo 1 > $V/reward.txt || echo 0 > $V/reward.txt\nexit 7\n"},
    "several-keys": {
        "test": 'echo "{\\"a\\": 0.5, \\"b\\": $(ok && echo 1 || echo 0)}" > $V/reward.json\n'
    },
    "no-reward-when-wrong": {"test": "ok && echo 1 > $V/reward.txt\n"},
    "malformed-when-wrong": {"test": "ok && echo 1 > $V/reward.txt || echo much > $V/reward.txt\n"},
    "image-says-how": {
        "docker": "ENV WANTED=42\nRUN echo left > base && chown -R 1234:1234 /app\nUSER 1234\n",
        "test": 'id -u > $V/id; test "$(id -u)$WANTED$(pwd)" = 123442/app || exit 1\n'
        "ok && cat /app/base && echo 1 > $V/reward.txt || echo 0 > $V/reward.txt\n",
    },
    "entrypoint-is-kept": {
        "docker": "RUN printf '#!/bin/sh\\necho up > /tmp/up\\nexec \"$@\"\\n' > /e; chmod 755 /e\n"
        'ENTRYPOINT ["/e"]\n',
        "toml": '[verifier]\nuser = "root"\n',
        "test": "ok && grep up /tmp/up && echo 1 > $V/reward.txt || echo 0 > $V/reward.txt\n",
    },
    "separate-verifier": {
        "toml": 'artifacts = ["/app/answer"]\n[verifier]\nenvironment_mode = "separate"\n',
        "test": "ok && echo 1 > $V/reward.txt || echo 0 > $V/reward.txt\n",
    },
    "tests-take-too-long": {
        "toml": "[verifier]\ntimeout_sec = 2.0\n",
        "test": "ok || sleep 60\necho 1 > $V/reward.txt\n",
    },
}
"""Each FROM the base image of the tests; the right answer is 42."""


Case = tuple[Path, str]
Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sandboxes keep what they make: an image is taken over once."""
    return tmp_path_factory.mktemp("place")


def _on_both(cases: dict[str, Case], image: str, place: Path) -> Outcomes:
    """Run each task with its agent in both sandboxes; return what happened in the local one.

    All of it is run by the one test that asks, so that one which fails can be run again.
    """

    async def in_one(kind: str) -> Outcomes:
        found = Outcomes()
        async with _provider(kind, image, place) as provider, asyncio.TaskGroup() as group:

            async def one(name: str, task: Path, agent: str) -> None:
                options = run_config(agent=agent, sandbox=kind)
                found[name] = _told(await run_in(provider, runnable_task(task), options))

            for name, case in cases.items():
                group.create_task(one(name, *case))
        return found

    local, contained = [asyncio.run(in_one(kind)) for kind in ("local", "docker")]
    assert local == contained
    return local


@asynccontextmanager
async def _provider(kind: str, image: str, place: Path) -> AsyncGenerator[SandboxProvider]:
    provider: LocalProvider | DockerProvider = (
        LocalProvider(store=place / "local")
        if kind == "local"
        else DockerProvider(image=image, store=place / "docker")
    )
    try:
        yield provider
    finally:
        await provider.aclose()


def _told(result: RunResult) -> dict[str, Any]:
    (leaf,) = result.tree.leaves
    verdict = leaf.results.get("reward")
    error = result.record.error
    return {
        "status": result.record.status,
        "reward": result.reward,
        "items": None if verdict is None else dict(verdict.items),
        "error_type": None if verdict is None else verdict.error_type,
        "boundary": None if error is None else error.boundary,
    }


def _harbor(root: Path, image: str, name: str, answer: str) -> Path:
    told = HARBOR[name]
    toml = told.get("toml", "")
    files = {
        # A key of the file itself comes before every table.
        "task.toml": f"{toml}{ALONE}",
        "instruction.md": "Write 42.\n",
        "environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n{told.get('docker', '')}",
        "tests/test.sh": CHECKS + told["test"],
        "solution/solve.sh": told.get("solve", WRITES).format(answer),
    }
    task = root / f"{name}-{answer}"
    for path, text in files.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    return task


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", HARBOR)
def test_a_harbor_task_has_one_outcome_on_both(
    image: str, place: Path, tmp_path: Path, name: str
) -> None:
    cases = {
        "right": (_harbor(tmp_path, image, name, "42"), "oracle"),
        "wrong": (_harbor(tmp_path, image, name, "41"), "oracle"),
        "nothing": (_harbor(tmp_path, image, name, "42"), "nop"),
    }
    found = _on_both(cases, image, place)
    assert found["right"]["reward"] == (0.75 if name == "several-keys" else 1)
    for which in ("wrong", "nothing"):
        assert found[which]["reward"] in {0, 0.25, None}


@pytest.fixture(scope="module")
def world(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our benchmark with its world in an image of the engine, which Local takes over."""
    with clawsbench_in_engine(image, tmp_path_factory.mktemp("claws")) as claws:
        yield claws


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_ours_has_one_outcome_on_both(
    image: str, world: Path, place: Path, tmp_path: Path, name: str
) -> None:
    other = (TASKS * 2)[TASKS.index(name) + 1]
    wrong = shutil.copytree(world, tmp_path / "wrong") / "tasks" / name
    shutil.rmtree(wrong / "solution")
    shutil.copytree(world / "tasks" / other / "solution", wrong / "solution")
    task = world / "tasks" / name
    cases = {"right": (task, "oracle"), "wrong": (wrong, "oracle"), "nothing": (task, "nop")}
    found = _on_both(cases, image, place)
    assert (found["right"]["reward"], found["nothing"]["reward"]) == (1, 0)
    # Another task's solution may also fail by itself, and then nothing is scored.
    assert found["wrong"]["reward"] in {0, None}
