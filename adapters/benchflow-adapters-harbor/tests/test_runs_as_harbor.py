"""Harbor and BenchFlow run the same tasks: what both give is what our table says.

`harbor_outcomes.json` has what Harbor gave for every case, with a digest of the case. Harbor itself
runs the cases of `LIVE` again. With `$BENCHFLOW_RECORD_HARBOR` it runs all and writes the file.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
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

TABLES = (REWARDS, PHASES, SEPARATE, CONTAINERS, STEPS, STATE)
CASES = {name: case for table in TABLES for name, case in table.items()}
LIVE = [next(iter(table)) for table in TABLES]
IN_DOCKER = {*LIVE, *CONTAINERS}
"""What we run in Docker: a case of each table, and all that are about containers. The others run
in local sandboxes, which are cheaper; `test_parity` compares the two."""

RECORD = Path(__file__).with_name("harbor_outcomes.json")
RECORDS = bool(os.environ.get("BENCHFLOW_RECORD_HARBOR"))

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
def run_ours(root: None, image: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run them by us, and export them for Harbor."""

    def run(names: Iterable[str]) -> Results:
        found = {}
        for sandbox in ("docker", "local"):
            jobs = tmp_path_factory.mktemp(f"jobs-{sandbox}")
            chosen = [name for name in names if sandbox_of(name) == sandbox]
            tasks = write_tasks(tmp_path_factory.mktemp("tasks"), image, chosen)
            for folder in tasks.iterdir():
                run_bench(folder, jobs, sandbox)
                for path in jobs.glob(f"{folder.name}/export/harbor/*/*/result.json"):
                    found[json.loads(path.read_text())["task_name"]] = path
        return found

    return run


@pytest.fixture(scope="module")
def all_run(
    run_harbor: Run, run_ours: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Results, Results]:
    """Start Harbor once, and us beside it."""
    # Made at first use, and two threads would make it twice.
    tmp_path_factory.getbasetemp()
    with ThreadPoolExecutor() as pool:
        harbor = pool.submit(run_harbor, CASES if RECORDS else LIVE)
        ours = pool.submit(run_ours, CASES)
        return harbor.result(), ours.result()


@pytest.fixture(scope="module")
def all_theirs(all_run: tuple[Results, Results]) -> Mapping[str, Any]:
    if RECORDS:
        record = {name: {"digest": digest(name), **given(all_run[0][name])} for name in CASES}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def all_ours(all_run: tuple[Results, Results]) -> Results:
    return all_run[1]


@pytest.fixture
def theirs(name: str, all_theirs: Mapping[str, Any]) -> Any:
    return all_theirs[name]


@pytest.fixture
def ours(request: pytest.FixtureRequest, name: str, all_ours: Results, run_ours: Run) -> Any:
    return given((all_ours | run_again(request, name, run_ours))[name])


def run_again(request: pytest.FixtureRequest, name: str, run: Run) -> Results:
    """Run the case of a test that failed and is tried again; the first result cannot change."""
    tries = getattr(request.node, "execution_count", 1)  # pytest-rerunfailures counts them
    return run([name]) if tries > 1 else {}


def digest(name: str) -> str:
    """Name what a case is made of, and Harbor's release."""
    made_of = [Path(os.environ["BENCHFLOW_HARBOR"]).parents[1].name, CASES[name].agent]
    text = json.dumps([*made_of, CASES[name].files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def given(path: Path) -> Any:
    """Return what is compared of a `result.json`, as JSON reads it."""
    return json.loads(json.dumps({"outcomes": outcomes(path), "phases": [*phases(path)]}))


def sandbox_of(name: str) -> str:
    return "docker" if name in IN_DOCKER else "local"


def run_bench(tasks: Path, jobs: Path, sandbox: str) -> None:
    here = Path(__file__).parent
    agent = ["--agent", tasks.name]
    if tasks.name == "script":
        agent = ["--agent-import-path", "script_agent:SCRIPT"]
    bench = Path(sys.executable).with_name("bench")
    command = [bench, "eval", "create", "--tasks-dir", tasks, "--sandbox", sandbox, *agent]
    # A local sandbox has no public network, which these tasks do not use.
    command += ["--offline"] if sandbox == "local" else []
    command += ["--jobs-dir", jobs, "--job-name", tasks.name, "--export", "harbor", "--quiet"]
    command += ["--concurrency", "2", "--reward-files", "open"]
    env = {**os.environ, "PYTHONPATH": str(here)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    # 1: some rollouts have no reward, as they should not.
    assert done.returncode in (0, 1), done.stderr


def test_the_record_is_of_these_cases(all_theirs: Mapping[str, Any]) -> None:
    recorded = {name: each["digest"] for name, each in all_theirs.items()}
    assert recorded == {name: digest(name) for name in CASES}, (
        "run this file with BENCHFLOW_RECORD_HARBOR=1"
    )


@pytest.mark.parametrize("name", LIVE)
def test_harbor_gives_the_recorded_rewards(
    request: pytest.FixtureRequest,
    all_run: tuple[Results, Results],
    run_harbor: Run,
    theirs: Any,
    name: str,
) -> None:
    live = all_run[0] | run_again(request, name, run_harbor)
    assert given(live[name]) == {key: theirs[key] for key in ("outcomes", "phases")}


@pytest.mark.parametrize("name", CASES)
def test_harbor_gave_the_rewards_of_the_table(theirs: Any, name: str) -> None:
    case = CASES[name]
    assert theirs["outcomes"] == [[approx(case.rewards), case.exception], *steps_of(name)]


@pytest.mark.parametrize("name", CASES)
def test_rollouts_give_the_rewards_of_harbor(theirs: Any, ours: Any, name: str) -> None:
    expected = theirs["outcomes"]
    if name in UNREWARDED:
        expected = [[None, UNREWARDED[name]], *expected[1:]]
    assert ours["outcomes"] == [[approx(rewards), exception] for rewards, exception in expected]


@pytest.mark.parametrize("name", CASES)
def test_rollouts_run_the_phases_of_harbor_and_save_the_same_artifacts(
    theirs: Any, ours: Any, name: str
) -> None:
    assert ours["phases"] == theirs["phases"]


def test_harbor_reads_all_that_is_exported_of_them_and_its_viewer_shows_it(
    all_ours: Results, harbor_python: str
) -> None:
    judge = Path(__file__).parents[3] / "tests" / "e2e" / "check_harbor_job.py"
    jobs = {path.parents[1] for path in all_ours.values()}
    assert len(jobs) == len({(sandbox_of(name), case.agent) for name, case in CASES.items()})
    for job in jobs:
        env = {**os.environ, "HARBOR_TELEMETRY": "off", "HOME": str(job.parent)}
        command = [harbor_python, "-I", judge, job.name]
        done = subprocess.run(
            command, cwd=job.parent, capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def steps_of(name: str) -> list[list[Any]]:
    return [[approx(rewards), exception] for rewards, exception in CASES[name].steps]


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
