"""What a resumed job deletes, and what it leaves alone."""

import asyncio

import pytest
from benchflow_contracts import HostError, RolloutIdentity, SandboxSpec
from benchflow_engine.leftovers import reap_leftovers
from benchflow_testing.fakes import FakeSandboxProvider


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def reap(provider, here, *, scope="job", epoch="2"):
    return asyncio.run(reap_leftovers(provider, scope, epoch, job_dir=str(here)))


def make(provider, *, dead=True, **identity):
    sandbox = asyncio.run(provider.create(SandboxSpec(), identity=RolloutIdentity(**identity)))
    if dead:
        provider.abandon(sandbox)
    return sandbox.id


def test_a_resumed_job_deletes_only_sandboxes_of_its_own_dead_epochs(tmp_path):
    provider, here, there = FakeSandboxProvider(), tmp_path / "a/job", tmp_path / "b/job"
    mine = {"scope": "job", "job_dir": str(here)}
    dead = make(provider, epoch="1", **mine)
    older = make(provider, scope="job", epoch="1")
    stay = {
        make(provider, epoch="2", **mine),
        make(provider, epoch="2", dead=False, **mine),
        make(provider, epoch="1", scope="job", job_dir=str(there)),
        make(provider, epoch="1", scope="another"),
        make(provider),
    }
    stopped = make(provider, epoch="1", dead=False, **mine)
    report = reap(provider, here)
    assert {record.id for record in report.sandboxes} == {dead, older}
    assert [record.id for record in report.active] == [stopped]
    assert {sandbox.id for sandbox in provider.live} == stay | {stopped}
    assert report.errors == ()
    assert reap(provider, here).sandboxes == ()


def test_temporary_directories_of_ended_processes_are_deleted(tmp_path):
    left = tmp_path / "bf-scratch-dead" / "grading-x"
    left.mkdir(parents=True)
    report = reap(FakeSandboxProvider(), tmp_path)
    assert report.directories == (left,)
    assert not left.parent.exists()
    assert str(report) == ("deleted 0 sandboxes and 1 directories of ended runners")


@pytest.mark.parametrize("error", [HostError("the engine does not answer"), RuntimeError("broken")])
def test_a_failure_is_reported_and_does_not_stop_the_job(tmp_path, error, monkeypatch):
    async def fail(policy):
        raise error

    provider = FakeSandboxProvider()
    monkeypatch.setattr(provider, "reap", fail)
    (tmp_path / "bf-scratch-dead").mkdir()
    report = reap(provider, tmp_path)
    [told] = report.errors
    assert (type(told), str(error) in str(told)) == (HostError, True)
    assert not (tmp_path / "bf-scratch-dead").exists()
    assert "could not delete all" in str(report)
