"""ClawsBench on two Ray nodes of this machine: as in one process, also after kills."""

import asyncio
import json
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchflow_store import read_groups
from fault_job import FaultJob, fault_job
from watching import until

if TYPE_CHECKING:
    from benchflow_jobs_ray import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]

ROOT = Path(__file__).parents[2]
NODE = {"benchflow": 2}
SLOTS = 5
JOB = f"""
[dataset]
paths = ["{ROOT}/benchmarks/clawsbench/tasks"]

[run]
agent.name = "oracle"

[retry]
pauses_sec = [0.2]

[concurrency]
slots = 4
"""


class Cluster:
    """Two nodes."""

    def __init__(self, runner: asyncio.Runner, cluster: "LocalCluster") -> None:
        self._runner = runner
        self._cluster = cluster
        self.address = cluster.address

    def kill(self, number: int) -> None:
        self._runner.run(self._cluster.kill_node(number))

    def rollouts_of(self, number: int, job: Path) -> dict[int, set[str]]:
        """Return the rollouts of a job that run on a node, by the process of their actor.

        A worker holds the log of a rollout open while it runs.
        """
        found: dict[int, set[str]] = {}
        for actor in _children(self._cluster.raylets[number]):
            for link in _open_files(actor):
                if link.name == "events.jsonl" and link.is_relative_to(job):
                    found.setdefault(actor, set()).add(link.parent.name)
        return found


def _children(parent: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(stat.parent.name)
        except OSError:
            continue


def _open_files(process: int) -> Iterator[Path]:
    try:
        links = list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield link.readlink()
        except OSError:
            continue


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    # The session that collects this file and runs no test of it does not load Ray.
    from benchflow_jobs_ray import LocalCluster, RayStartError  # noqa: PLC0415

    with asyncio.Runner() as runner:
        nodes = LocalCluster([NODE, NODE])
        try:
            runner.run(nodes.start())
        except RayStartError as error:
            pytest.exit(f"no test ran on Ray: {error}", returncode=3)
        yield Cluster(runner, nodes)
        runner.run(nodes.close())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("jobs")
    (home / "job.toml").write_text(JOB)
    return home


@pytest.fixture(scope="module")
def near(home: Path) -> Generator[FaultJob]:
    """The job in one process."""
    with fault_job(home, "near") as job:
        job.command = words("near")
        job.run()
        job.check_complete(SLOTS, {})
        yield job


def words(name: str, cluster: Cluster | None = None, *more: str) -> tuple[str, ...]:
    backend = (
        ()
        if cluster is None
        else ("--backend=ray", f"--set=backend.options.address={cluster.address}")
    )
    return ("job", "run", "job.toml", f"--job-name={name}", *backend, *more)


def test_a_job_whose_node_and_driver_are_killed_ends_as_one_in_one_process(
    home: Path, near: FaultJob, cluster: Cluster
) -> None:
    with fault_job(home, "far") as job:
        job.command = words("far", cluster)
        driver = job.start()
        doomed = _stopped(cluster, 1, job.directory)
        cluster.kill(1)
        until("the loss of its rollouts", lambda: doomed <= _of_status(job, "lost"))
        job.until_scored(1)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
        kept = job.scored()
        job.run()
        job.check_complete(SLOTS, kept)
        job.check_same_as(near)
        ended = [each.rollout for each in job.attempts()]
        assert len(set(ended)) == len(ended)
        assert not any(each.duplicate for each in job.attempts())


def _stopped(cluster: Cluster, number: int, job: Path) -> set[str]:
    """Stop the actor of a node while it runs rollouts, and return them: none of them can end."""
    while True:
        until("a rollout on the node", lambda: bool(cluster.rollouts_of(number, job)))
        (actor,) = cluster.rollouts_of(number, job) or (None,)
        if actor is None:
            continue
        os.kill(actor, signal.SIGSTOP)
        if doomed := cluster.rollouts_of(number, job).get(actor):
            return doomed
        os.kill(actor, signal.SIGCONT)


def _of_status(job: FaultJob, status: str) -> set[str]:
    return {each.rollout for each in job.attempts() if each.status == status}


GROUP_REWARD = """
from benchflow_contracts import VerifyResult


class Places:
    name = "places"

    async def score_group(self, task, leaves):
        return [VerifyResult(reward=float(at)) for at, _ in enumerate(leaves, 1)]
"""
MEMBERS = 4
"""More than the slots of one node, so both nodes run some."""


def test_rollouts_of_two_nodes_are_scored_as_one_group(home: Path, cluster: Cluster) -> None:
    """The rewards of the group are those of a job in one process."""
    (home / "places.py").write_text(GROUP_REWARD)
    scored = "--set=run.reward.group_import_path=places:Places"
    more = (scored, "--set=dataset.limit=1", f"--set=design.replications={MEMBERS}")
    found: list[list[float | None]] = []
    for name, nodes in (("far-group", cluster), ("near-group", None)):
        with fault_job(home, name) as job:
            job.command = words(name, nodes, *more)
            job.run()
            job.check_complete(MEMBERS, {})
            (group,) = read_groups(job.directory)
            assert group.lost == ()
            assert len({each.rollout for each in group.leaves}) == MEMBERS
            found.append(sorted(each.result.reward or 0 for each in group.leaves))
    assert found == [[float(at) for at in range(1, MEMBERS + 1)]] * 2


def test_files_of_a_node_come_back_and_are_scored_as_a_group(home: Path, cluster: Cluster) -> None:
    (home / "bucket").mkdir()
    (home / "places.py").write_text(GROUP_REWARD)
    with fault_job(home, "sent") as job:
        url = (home / "bucket").as_uri()
        scored = "--set=run.reward.group_import_path=places:Places"
        limit = "--set=dataset.limit=1"
        job.command = words("sent", cluster, f"--set=evidence.url={url}", limit, scored)
        job.run()
        job.check_complete(1, {})
        (result,) = job.directory.glob("*/result.json")
        tree = json.loads((result.parent / "tree.json").read_text())
        assert [node["step"] is not None for node in tree["nodes"]].count(True) >= 1
        assert (result.parent / "verifier").is_dir()
        assert not (job.directory / "workers.mark").exists()
        (group,) = read_groups(job.directory)
        assert [each.result.reward for each in group.leaves] == [1]
        assert group.lost == ()
