"""Jobs of the service: submitted, followed, paused, cancelled, and continued after a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_jobs import plan_of
from benchflow_serve.caps import RequestCaps
from benchflow_serve.job_requests import job_config
from benchflow_serve_client import (
    JobPause,
    JobRequest,
    ServeClient,
    ServiceBusyError,
    ServiceConflictError,
    ServiceNotFoundError,
    ServiceRefusedError,
)
from served_jobs import job, open_client, wait_for_attempt
from served_rollouts import TASK, open_service, settings_at


async def ended(client: ServeClient, name: str) -> Any:
    async with asyncio.timeout(60):
        return await client.wait_job(name, poll_sec=0.02)


def test_a_job_runs_in_the_slots_of_the_service_and_has_results(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_client(settings_at(tmp_path, slots=1)) as (client, service):
            given = await client.submit_job(
                job(design={"replications": 3}, variants=[{"id": "a"}, {"id": "b"}])
            )
            assert (given.name, given.slots) == ("one", 6)
            done = await ended(client, "one")
            assert (done.state, done.completed, done.mean_reward) == ("completed", 6, 0.5)
            page = await client.job_results("one", limit=4)
            assert [slot.reward for slot in page.slots] == [0.5] * 4
            assert page.next == 4
            rest = await client.job_results("one", first=4)
            assert ([s.index for s in rest.slots], rest.next) == ([4, 5], None)
            variants = [slot.variant for slot in (*page.slots, *rest.slots)]
            assert sorted(variants) == ["a"] * 3 + ["b"] * 3
            assert [each.name for each in await client.jobs()] == ["one"]
            assert (await client.cancel_job("one")).state == "completed"
            assert service.slots.used == 0

    asyncio.run(check())


def test_one_key_or_name_is_one_job_and_another_body_a_conflict(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_client(settings_at(tmp_path)) as (client, _):
            async with asyncio.TaskGroup() as group:
                both = [group.create_task(client.submit_job(job(None), key="k")) for _ in range(2)]
            [name] = {each.result().name for each in both}
            await ended(client, name)
            assert (await client.submit_job(job(None), key="k")).name == name
            with pytest.raises(ServiceConflictError):
                await client.submit_job(job(None, retry={"retries": 1}), key="k")
            await ended(client, (await client.submit_job(job("two"))).name)
            with pytest.raises(ServiceConflictError, match="another request"):
                await client.submit_job(job("two", design={"replications": 2}))

    asyncio.run(check())


@pytest.mark.parametrize(
    ("tables", "status", "where"),
    [
        ({"dataset": {"paths": ["/etc"]}}, 403, "dataset.paths"),
        ({"job": {"jobs_dir": "/tmp/x"}}, 403, "job.jobs_dir"),
        ({"backend": {"name": "os:system"}}, 403, "backend"),
        ({"evidence": {"url": "file:///etc"}}, 403, "evidence"),
        ({"tasks": {TASK: {"image": "evil"}}}, 403, "tasks"),
        ({"run": {"agent": {"import_path": "os:system"}}}, 403, "run.agent.import_path"),
        ({"run": {"agent": {"env": {"A": "b"}}}}, 403, "run.agent.env"),
        ({"run": {"sandbox": {"allow_unisolated": True}}}, 403, "run.sandbox"),
        ({"run": {"forward_env": ["HOME"]}}, 403, "run.forward_env"),
        ({"run": {"model": {"api_key_env": "HOME"}}}, 403, "run.model.api_key_env"),
        ({"run": {"tables": {"skills_dir": "/etc"}}}, 403, "run.tables"),
        ({"variants": [{"id": "a", "image": "evil"}]}, 403, "variants.0.image"),
        ({"sweep": {"agent.env.A": ["b"]}}, 403, "sweep.agent.env.A"),
        ({"sweep": {"model": {"base_url": ["http://evil"]}}}, 403, "sweep.model.base_url"),
        ({"run": {"agent": {"name": "nobody"}}}, 400, "run.agent.name"),
        ({"sweep": {"agent.name": ["nobody"]}}, 400, "sweep.agent.name"),
        ({"variants": {}}, 400, "variants"),
        ({"run": []}, 400, "run"),
        ({"variants": [1]}, 400, "variants.0"),
        ({"sweep": {f"bindings.{a}": list(range(20)) for a in "abc"}}, 400, "sweep"),
        ({"variants": [{"id": f"v{n}"} for n in range(1001)]}, 400, "variants"),
        (
            {
                "design": {"replications": 65535},
                "variants": [{"id": "a"}, {"id": "b"}],
            },
            400,
            "design",
        ),
        ({"job": {"name": "../x"}}, 400, "tables.job.name"),
        ({"design": {"replications": 0}}, 400, "design.replications"),
        ({"dataset": {"include": ["nothing"]}}, 400, None),
    ],
)
def test_a_job_cannot_set_what_the_operator_decides(
    tmp_path: Path, tables: dict[str, Any], status: int, where: str | None
) -> None:
    async def check() -> None:
        async with open_client(settings_at(tmp_path)) as (client, _):
            with pytest.raises(ServiceRefusedError) as refused:
                await client.submit_job(JobRequest(tables=tables))
            assert refused.value.status == status, refused.value
            if where is not None:
                assert refused.value.where == where
            assert list(await client.jobs()) == []
            assert list((tmp_path / "serve/jobs").iterdir()) == []

    asyncio.run(check())


def test_an_endpoint_of_a_job_never_gets_the_key_of_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_API_KEY", "sk-of-the-operator")
    tables = {"run": {"model": {"base_url": "http://127.0.0.1:9/v1"}}}
    [variant] = plan_of(job_config(settings_at(tmp_path), tables, "x")).plan.variants
    endpoint = variant.run.model.endpoint()
    assert endpoint is not None
    assert not endpoint.headers


@pytest.mark.parametrize(
    ("caps", "tables"),
    [
        ({"leaves": 2}, {"run": {"branch": {"kind": "group", "n": 3}}}),
        ({"forks": 1}, {"run": {"branch": {"kind": "group", "budget": {"max_depth": 2}}}}),
        ({"tokens": 10}, {"budget": {"tokens": 21}, "design": {"replications": 2}}),
        ({"tokens": 10}, {}),
        ({"wall_sec": 5}, {"budget": {"rollout_sec": 6}}),
    ],
)
def test_a_job_above_a_limit_is_refused(
    tmp_path: Path, caps: dict[str, Any], tables: dict[str, Any]
) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, caps=RequestCaps.model_validate(caps))
        async with open_client(settings) as (client, _):
            with pytest.raises(ServiceRefusedError) as refused:
                await client.submit_job(job(**tables))
            assert refused.value.kind == "LimitExceededError"

    asyncio.run(check())


def test_a_job_is_paused_resumed_cancelled_and_continued(tmp_path: Path) -> None:
    async def check() -> None:
        settings = settings_at(tmp_path, "hanging_agent", slots=1, jobs=1)
        async with open_client(settings) as (client, service):
            await client.submit_job(job(design={"replications": 2}))
            await wait_for_attempt(service)
            assert (await client.job("one")).running >= 1
            with pytest.raises(ServiceBusyError):
                await client.submit_job(job("two"))
            assert (await client.pause_job("one", JobPause(reason="lunch"))).state == "paused"
            assert (await client.resume_job("one")).state == "running"
            stopped = await client.cancel_job("one")
            assert (stopped.state, stopped.running, service.slots.used) == ("stopped", 0, 0)
            with pytest.raises(ServiceConflictError, match="does not run"):
                await client.pause_job("one")
            assert (await client.resume_job("one")).state == "running"
            await client.cancel_job("one")
            with pytest.raises(ServiceNotFoundError):
                await client.job("nobody")

    asyncio.run(check())


def test_a_job_that_the_service_cut_continues_at_its_next_start(tmp_path: Path) -> None:
    async def begin() -> None:
        async with open_client(settings_at(tmp_path, "hanging_agent", slots=1)) as (_, service):
            await service.jobs.submit(job())
            await wait_for_attempt(service)

    async def again() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=1)) as service:
            await wait_for_attempt(service)
            assert service.jobs.status("one").state == "running"
            await service.jobs.cancel("one")
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=1)) as service:
            assert service.jobs.status("one").state == "stopped"

    asyncio.run(begin())
    asyncio.run(again())
