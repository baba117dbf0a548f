"""The newest version of a learner store follows from the records that count."""

from pathlib import Path
from typing import Any

from benchflow_contracts import LearnerUse, LearnerVersion, RolloutRecord
from benchflow_engine.scaffold import write_task
from benchflow_jobs.learner_versions import LearnerVersions
from benchflow_jobs.planning import JobConfig, ResolvedJob, plan_job
from benchflow_store.database import ResolvedSlot


def version(generation: int) -> LearnerVersion:
    digest = f"sha256:{generation:064x}"
    return LearnerVersion(generation=generation, digest=digest, rollout=f"r{generation}")


def record(made: int | None, epoch: int = 1, rollout: str | None = None) -> RolloutRecord:
    after = None if made is None else version(made)
    if after is not None and rollout is not None:
        after = after.model_copy(update={"rollout": rollout})
    return RolloutRecord(
        rollout_id=f"r{made}",
        task_id="t",
        task_digest="d",
        agent="a",
        model=None,
        sandbox="s",
        status="completed",
        reward=1,
        epoch=str(epoch),
        learner=LearnerUse(after=after),
        finished_at=0,
    )


def slot(index: int, variant: str, made: int | None, **changes: Any) -> ResolvedSlot:
    fields: dict[str, Any] = {
        "index": index,
        "name": f"t#{index}@{variant}",
        "variant": variant,
        "task": "t",
        "repeat": index,
        "task_digest": "d",
        "status": "completed",
        "attempt": None,
        "record": record(made).model_dump_json(),
    }
    return ResolvedSlot(**{**fields, **changes})


def plan(tmp_path: Path) -> ResolvedJob:
    write_task(tmp_path / "t")
    variants = [{"id": "a"}, {"id": "b", "agent": {"name": "nop"}}]
    tables: dict[str, Any] = {"variants": variants, "design": {"schedule": "sequential-shared"}}
    tables["dataset"] = {"paths": [str(tmp_path / "t")]}
    return plan_job(JobConfig.model_validate(tables))


def test_a_variant_has_its_own_store_and_order_is_by_generation_not_by_slot(tmp_path: Path) -> None:
    # A slot that failed runs again after later ones.
    slots = [slot(0, "a", 3), slot(1, "a", 1), slot(2, "a", 2), slot(3, "b", 1)]
    slots += [slot(4, "b", None), slot(5, "b", None, record=None)]
    versions = LearnerVersions(plan(tmp_path), tmp_path, slots)
    assert versions.newest("a") == version(3)
    assert versions.newest("b") == version(1)


def test_only_a_later_version_replaces_the_newest_one(tmp_path: Path) -> None:
    versions = LearnerVersions(plan(tmp_path), tmp_path, [])
    assert versions.newest("a") == LearnerVersion()
    versions.note("a", record(1))
    versions.note("a", record(2))
    versions.note("a", record(1))
    versions.note("a", record(None))
    assert versions.newest("a") == version(2)
    assert versions.newest("b") == LearnerVersion()


def test_of_two_versions_of_one_generation_that_of_the_later_run_of_the_job_counts(
    tmp_path: Path,
) -> None:
    stale, later = record(2, epoch=9, rollout="stale"), record(2, epoch=10, rollout="later")
    for order in ((stale, later), (later, stale)):
        versions = LearnerVersions(plan(tmp_path / str(order.index(stale))), tmp_path, [])
        for each in (record(1), *order):
            versions.note("a", each)
        assert versions.newest("a").rollout == "later"


def test_the_agent_of_a_sequential_job_knows_the_place_of_its_store(tmp_path: Path) -> None:
    env = plan(tmp_path).run_config(0).agent.env
    assert env["BENCHFLOW_LEARNER_DIR"] == "/learner"
