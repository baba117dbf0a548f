"""The adapter on directories of samples, without Inspect's package."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_inspect.tasks import InspectAdapter, inspect_rewards
from benchflow_adapters_inspect.tasks.sample_folder import (
    SAMPLE_FILE,
    SampleFolder,
    TaskReference,
    write_sample,
)
from benchflow_contracts import (
    Evidence,
    RewardError,
    RolloutNode,
    Task,
    TaskConfig,
    TaskError,
    UsageError,
)
from benchflow_testing import AdapterCheck, AdapterSubject, adapter_checks, run_check


def _write_good(folder: Path) -> None:
    folder.rmdir()
    config = TaskConfig.model_validate({"name": "words/one", "verifier": {"type": "inspect"}})
    sample = SampleFolder(
        task=TaskReference(spec="words"), index=0, config=config, instruction="Write."
    )
    write_sample(folder, sample, {"etc/a.txt": b"a"}, {"given.txt": b"blue"})


def _write_broken(folder: Path) -> None:
    (folder / SAMPLE_FILE).write_text('{"version": 2}')


@pytest.mark.parametrize("check", adapter_checks(), ids=str)
def test_the_adapter_passes_the_conformance_kit(check: AdapterCheck, tmp_path: Path) -> None:
    subject = AdapterSubject(InspectAdapter(tmp_path), _write_good, _write_broken)
    asyncio.run(run_check(check, subject)).raise_if_failed()


def test_files_of_a_sample_are_in_the_working_directory_or_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    _write_good(tmp_path / "a")
    parts = InspectAdapter(tmp_path).load_task(tmp_path / "a").parts
    assert parts.workdir_files is not None
    assert parts.files is not None
    assert (parts.workdir_files / "given.txt").read_bytes() == b"blue"
    assert (parts.files / "etc/a.txt").read_bytes() == b"a"


def test_a_file_that_leads_out_of_the_sample_is_refused(tmp_path: Path) -> None:
    config = TaskConfig.model_validate({"name": "x"})
    sample = SampleFolder(task=TaskReference(spec="x"), index=0, config=config, instruction="x")
    with pytest.raises(TaskError, match="leads out"):
        write_sample(tmp_path / "a", sample, {}, {"../../evil": b""})


def _with_service(folder: Path, **service: Any) -> Task:
    services = [{"name": "web", **service}]
    text = (folder / SAMPLE_FILE).read_text()
    (folder / SAMPLE_FILE).write_text(json.dumps({**json.loads(text), "services": services}))
    return InspectAdapter(folder.parent).load_task(folder)


def test_a_service_is_built_from_files_of_the_sample_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    _task(tmp_path)
    (service,) = _with_service(folder, recipe={"context": "services/web"}).parts.services
    assert service.recipe is not None
    assert service.recipe.context == folder / "services/web"
    for context in ("/etc", "services/../..", "root"):
        with pytest.raises(TaskError, match="leads out of its directory"):
            _with_service(folder, recipe={"context": context})
    for hostile in ({"host_mounts": {"/x": {"path": "/etc"}}}, {"files": {"/x": "/etc/shadow"}}):
        with pytest.raises(TaskError, match="names a path of this machine"):
            _with_service(folder, image="a", **hostile)


def test_a_source_of_inspect_without_its_package_names_the_extra(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        InspectAdapter(tmp_path).list_tasks("inspect:file.py@task")
    assert "benchflow-adapters-inspect[inspect]" in (caught.value.hint or "")


def test_the_reward_without_inspects_package_is_an_error_and_never_zero(tmp_path: Path) -> None:
    task = _task(tmp_path)
    (reward,) = inspect_rewards(task)
    with pytest.raises(RewardError, match="Inspect's package"):
        asyncio.run(reward.score(RolloutNode(id="n"), Evidence(task=task)))


def test_the_reward_refuses_a_task_of_another_format(tmp_path: Path) -> None:
    other = _task(tmp_path).model_copy(update={"format": "benchflow"})
    with pytest.raises(TaskError, match="format 'benchflow'"):
        inspect_rewards(other)


def _task(directory: Path) -> Task:
    (directory / "a").mkdir()
    _write_good(directory / "a")
    return InspectAdapter(directory).load_task(directory / "a")
