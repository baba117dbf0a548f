"""Harbor and BenchFlow run the same tasks: what both give is what our table says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harbor_corpus import write
from running_case import BASE, ONCE
from running_containers import CONTAINERS
from running_phases import PHASES
from running_rewards import REWARDS
from running_separate import SEPARATE
from running_state import STATE
from running_steps import STEPS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CASES = REWARDS | PHASES | SEPARATE | CONTAINERS | STEPS | STATE

UNREWARDED = {
    "no-reward-in-a-later-step": "RewardFileNotFoundError",
    "setup-fails-later": "RuntimeError",
}
"""Where Harbor leaves a step without a verdict out: ours have no reward, and say why."""


Results = dict[str, Path]
Run = Callable[[Iterable[str]], Results]
"""Runs some of the cases; returns the `result.json` of each."""


def write_tasks(root: Path, image: str, names: Iterable[str]) -> Path:
    """Write a folder of tasks for each agent."""
    once = uuid4().hex
    for name in names:
        case = CASES[name]
        texts = case.files.items()
        files = {path: text.replace(BASE, image).replace(ONCE, once) for path, text in texts}
        write(root / case.agent / name, files)
    return root


@pytest.fixture(scope="module")
def run_harbor(
    image: str, harbor_python: str, compose: str, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    def run(names: Iterable[str]) -> Results:
        home = tmp_path_factory.mktemp("harbor")
        tasks = write_tasks(home / "tasks", image, names)
        env = {
            **os.environ,
            "HARBOR_TELEMETRY": "off",
            "HOME": str(home),
            "DOCKER_CONFIG": compose,
            "BUILDX_CONFIG": str(home / "buildx"),
            "PATH": f"{compose}/bin:{os.environ['PATH']}",
        }
        script = Path(__file__).with_name("run_with_harbor.py")
        done = subprocess.run(
            [harbor_python, script, tasks, home / "trials"],
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return {name: Path(path) for name, path in json.loads(done.stdout).items()}

    return run


@pytest.fixture(scope="module")
def run_ours(image: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run them by us, and export them for Harbor."""

    def run(names: Iterable[str]) -> Results:
        jobs = tmp_path_factory.mktemp("jobs")
        tasks = write_tasks(tmp_path_factory.mktemp("tasks"), image, names)
        found = {}
        for folder in tasks.iterdir():
            run_bench(folder, jobs)
            for path in jobs.glob(f"{folder.name}/export/harbor/*/*/result.json"):
                found[json.loads(path.read_text())["task_name"]] = path
        return found

    return run


@pytest.fixture(scope="module")
def all_run(
    run_harbor: Run, run_ours: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Results, Results]:
    """Start Harbor once, for all of them, and us beside it."""
    # Made at first use, and two threads would make it twice.
    tmp_path_factory.getbasetemp()
    with ThreadPoolExecutor() as pool:
        theirs, ours = [pool.submit(run, CASES) for run in (run_harbor, run_ours)]
        return theirs.result(), ours.result()


@pytest.fixture(scope="module")
def all_theirs(all_run: tuple[Results, Results]) -> Results:
    return all_run[0]


@pytest.fixture(scope="module")
def all_ours(all_run: tuple[Results, Results]) -> Results:
    return all_run[1]


@pytest.fixture
def theirs(request: pytest.FixtureRequest, all_theirs: Results, run_harbor: Run) -> Results:
    return all_theirs | anew(request, run_harbor)


@pytest.fixture
def ours(request: pytest.FixtureRequest, all_ours: Results, run_ours: Run) -> Results:
    return all_ours | anew(request, run_ours)


def anew(request: pytest.FixtureRequest, run: Run) -> Results:
    """Run the case of a test that failed and is tried again, which what was run cannot mend."""
    tries = getattr(request.node, "execution_count", 1)  # pytest-rerunfailures counts them
    return run([request.node.callspec.params["name"]]) if tries > 1 else {}


def run_bench(tasks: Path, jobs: Path) -> None:
    here = Path(__file__).parent
    agent = ["--agent", tasks.name]
    if tasks.name == "script":
        agent = ["--agent-import-path", "script_agent:SCRIPT"]
    bench = Path(sys.executable).with_name("bench")
    command = [bench, "eval", "create", "--tasks-dir", tasks, "--sandbox", "docker", *agent]
    command += ["--jobs-dir", jobs, "--job-name", tasks.name, "--export", "harbor", "--quiet"]
    command += ["--concurrency", "2", "--reward-files", "harbor"]
    env = {**os.environ, "PYTHONPATH": str(here)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    # 1: some rollouts have no reward, as they should not.
    assert done.returncode in (0, 1), done.stderr


@pytest.mark.parametrize("name", CASES)
def test_harbor_gives_what_the_table_says(theirs: Results, name: str) -> None:
    case, told = CASES[name], outcomes(theirs[name])
    assert told == [(approx(case.rewards), case.exception), *steps_of(name)], told


@pytest.mark.parametrize("name", CASES)
def test_our_rollouts_give_what_harbor_gives(theirs: Results, ours: Results, name: str) -> None:
    told = outcomes(theirs[name])
    if name in UNREWARDED:
        told[0] = (None, UNREWARDED[name])
    assert outcomes(ours[name]) == [(approx(rewards), exception) for rewards, exception in told]


@pytest.mark.parametrize("name", CASES)
def test_our_rollouts_ran_the_phases_that_harbor_ran_and_kept_the_same_artifacts(
    theirs: Results, ours: Results, name: str
) -> None:
    assert list(phases(ours[name])) == list(phases(theirs[name]))


def test_harbor_reads_all_that_is_exported_of_them_and_its_viewer_shows_it(
    all_ours: Results, harbor_python: str
) -> None:
    judge = Path(__file__).parents[3] / "tests" / "e2e" / "check_harbor_job.py"
    jobs = {path.parents[1] for path in all_ours.values()}
    assert len(jobs) == len({case.agent for case in CASES.values()})
    for job in jobs:
        env = {**os.environ, "HARBOR_TELEMETRY": "off", "HOME": str(job.parent)}
        command = [harbor_python, "-I", judge, job.name]
        done = subprocess.run(
            command, cwd=job.parent, capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def steps_of(name: str) -> list[tuple[Any, str | None]]:
    return [(approx(rewards), exception) for rewards, exception in CASES[name].steps]


def approx(rewards: Any) -> Any:
    return None if rewards is None else pytest.approx(rewards)


def phases(path: Path) -> Iterator[Any]:
    """Yield how a trial is graded, the phases of it and of each step, and what became of artifacts.

    Harbor also tells of artifacts where no verifier was run: then there was nothing to keep.
    """
    result = json.loads(path.read_text())
    yield result["verifier_environment_mode"]
    steps = [(path.parent / "steps" / s["step_name"], s) for s in result["step_results"] or []]
    for home, each in [(path.parent, result), *steps]:
        verified = each.get("verifier") is not None
        told = (home / "verifier" / "test-stdout.txt").exists()
        yield each.get("agent_execution") is not None, verified, told
        if verified:
            yield sorted(map(artifact, json.loads((home / "artifacts/manifest.json").read_text())))


def artifact(entry: dict[str, Any]) -> tuple[Any, ...]:
    return (
        *(entry["source"], entry["service"] or "", entry["destination"]),
        *(entry["type"], entry["status"], entry["exclude"]),
    )


def outcomes(path: Path) -> list[tuple[Any, str | None]]:
    """Return rewards and exception type of a trial, and of each of its steps."""
    result = json.loads(path.read_text())
    found: list[tuple[Any, str | None]] = []
    for each in [result, *(result.get("step_results") or [])]:
        verdict, error = each["verifier_result"], each["exception_info"]
        found.append((verdict and verdict["rewards"], error and error["exception_type"]))
    return found
