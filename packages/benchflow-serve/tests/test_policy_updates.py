"""Policies: which weights answer a rollout's calls after an update."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from benchflow_contracts import BenchFlowError, ModelGateway, PolicyEndpoint
from benchflow_engine.config import RunConfig
from benchflow_kernel import Planes
from benchflow_serve.policies import (
    Policies,
    PolicyOrder,
    PolicyUse,
    configured_for,
    policy_endpoint,
)
from benchflow_serve.problems import ConflictError, NotFoundError, RequestRefusedError
from benchflow_serve_client import InFlight, ModelEndpoint, PolicyStatus, PolicyUpdate
from benchflow_testing.fakes import FakeModelGateway, FakeSandboxProvider, FakeUserModel
from hypothesis import given
from hypothesis import strategies as st


def update(
    version: str, in_flight: InFlight = "finish", *, at: str | None = None, **more: Any
) -> PolicyUpdate:
    endpoint = {"url": f"http://127.0.0.1:1/{at or version}/v1", "model": "m"}
    return PolicyUpdate.model_validate(
        {"version": version, "endpoint": endpoint, "in_flight": in_flight, **more}
    )


def planes_with(gateway: ModelGateway | None) -> Planes:
    return Planes(
        provider=FakeSandboxProvider(),
        agents={},
        rewards=(),
        environment=None,
        user=FakeUserModel,
        gateway=gateway,
    )


class Rollouts:
    """Rollouts of one policy, each with one node, and the orders that they got."""

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.orders: list[tuple[str, PolicyOrder]] = []
        self.gateway = FakeModelGateway()

    def queue(self, rollout: str, *, pinned: bool = False) -> PolicyUse:
        return self.policies.reserve(
            "p", rollout, lambda order: self.orders.append((rollout, order)), pinned=pinned
        )

    async def open_route(self, use: PolicyUse, node: str = "n1") -> Any:
        planes = use.prepare(planes_with(self.gateway))
        assert planes.gateway is not None
        return await planes.gateway.open(
            use.rollout, node, upstream=PolicyEndpoint(url="http://127.0.0.1:9/unused")
        )

    async def start(self, rollout: str, *, pinned: bool = False) -> tuple[PolicyUse, Any]:
        use = self.queue(rollout, pinned=pinned)
        use.begin()
        return use, await self.open_route(use)


def versions(route: Any) -> Sequence[str | None]:
    return [call.policy_version for call in route.calls()]


def run(body: Callable[[Rollouts], Any]) -> Rollouts:
    async def main() -> Rollouts:
        rollouts = Rollouts(Policies())
        await rollouts.policies.update("p", update("v1"))
        await body(rollouts)
        return rollouts

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [("finish", ["v1", "v1"]), ("swap", ["v1", "v2"]), ("park", ["v1", "v1"])],
)
def test_an_update_decides_which_weights_answer_a_running_rollout(
    in_flight: InFlight, expected: list[str]
) -> None:
    async def body(rollouts: Rollouts) -> None:
        use, route = await rollouts.start("r1")
        await route.call({})
        status = await rollouts.policies.update("p", update("v2", in_flight))
        await route.call({})
        assert versions(route) == expected
        child = await rollouts.open_route(use, "n2")
        await child.call({})
        assert versions(child) == expected[-1:]
        assert status.in_flight == {expected[-1]: 1}
        assert (status.swapped, list(status.parked)) == {
            "finish": (0, []),
            "swap": (1, []),
            "park": (0, ["r1"]),
        }[in_flight]

    rollouts = run(body)
    assert rollouts.orders == ([("r1", "park")] if in_flight == "park" else [])


def test_a_dropped_rollout_is_counted_by_its_version() -> None:
    async def body(rollouts: Rollouts) -> None:
        await rollouts.start("r1")
        rollouts.queue("waits")
        rollouts.queue("pinned", pinned=True)
        status = await rollouts.policies.update("p", update("v2", "drop"))
        assert status.dropped == {"v1": 2}
        assert status.in_flight == {}

    assert run(body).orders == [("pinned", "drop"), ("r1", "drop")]


def test_a_rollout_in_the_queue_starts_with_the_newest_weights() -> None:
    async def body(rollouts: Rollouts) -> None:
        use = rollouts.queue("r1")
        await rollouts.policies.update("p", update("v2", max_staleness=0))
        use.begin()
        route = await rollouts.open_route(use)
        await route.call({})
        assert versions(route) == ["v2"]

    assert run(body).orders == []


@pytest.mark.parametrize(("in_flight", "version"), [("finish", "v1"), ("swap", "v2")])
def test_a_pinned_member_starts_with_the_weights_of_its_group(
    in_flight: InFlight, version: str
) -> None:
    async def body(rollouts: Rollouts) -> None:
        use = rollouts.queue("r1", pinned=True)
        await rollouts.policies.update("p", update("v2", in_flight))
        use.begin()
        assert use.first.version == version

    run(body)


def test_work_that_is_too_old_is_dropped_at_an_update() -> None:
    async def body(rollouts: Rollouts) -> None:
        await rollouts.start("old")
        rollouts.queue("pinned", pinned=True)
        await rollouts.policies.update("p", update("v2", "swap", max_staleness=1))
        await rollouts.start("new")
        assert rollouts.orders == []
        status = await rollouts.policies.update("p", update("v3", "swap", max_staleness=1))
        # The first tokens of a swapped rollout stay those of its first version.
        assert status.dropped == {"v1": 1}
        assert status.in_flight == {"v3": 1}

    assert run(body).orders == [("old", "drop")]


def test_an_update_may_be_repeated() -> None:
    async def body(rollouts: Rollouts) -> None:
        first = await rollouts.policies.update("p", update("v2", "swap"))
        assert await rollouts.policies.update("p", update("v2", "swap")) == first
        with pytest.raises(ConflictError, match="version 'v2' of policy 'p'"):
            await rollouts.policies.update("p", update("v2", "swap", at="elsewhere"))

    run(body)


def test_running_rollouts_cannot_keep_weights_that_are_overwritten() -> None:
    async def body(rollouts: Rollouts) -> None:
        use, _ = await rollouts.start("r1")
        with pytest.raises(RequestRefusedError, match="cannot keep the old weights"):
            await rollouts.policies.update("p", update("v2", "finish", at="v1"))
        assert rollouts.policies.status("p").version == "v1"
        use.close()
        await rollouts.policies.update("p", update("v2", "finish", at="v1"))
        assert rollouts.policies.status("p").version == "v2"

    run(body)


def test_an_update_cannot_change_the_protocol() -> None:
    async def body(rollouts: Rollouts) -> None:
        other = update("v2").model_copy(
            update={"endpoint": ModelEndpoint(url="http://h/v1", model="m", upstream="openai")}
        )
        with pytest.raises(RequestRefusedError, match="'vllm', and the update 'openai'"):
            await rollouts.policies.update("p", other)

    run(body)


def test_a_policy_of_unknown_kind_is_probed_when_it_is_registered() -> None:
    async def register(policies: Policies) -> PolicyStatus:
        endpoint = ModelEndpoint(url="http://127.0.0.1:9/auto", model="m", upstream="auto")
        return await policies.update("p", PolicyUpdate(version="v1", endpoint=endpoint))

    status = asyncio.run(register(Policies()))
    assert (status.endpoint.upstream, status.tokens) == ("openai", None)
    assert "did not answer" in str(status.probe_error)
    with pytest.raises(RequestRefusedError, match="did not answer") as refused:
        asyncio.run(register(Policies(require_tokens=True)))
    assert refused.value.status == 400


def test_an_unknown_policy_is_a_typed_error() -> None:
    with pytest.raises(NotFoundError, match="policy 'q' is not registered"):
        Policies().reserve("q", "r", lambda _: None)


def test_a_route_that_opens_during_an_update_gets_the_new_weights() -> None:
    async def body(rollouts: Rollouts) -> None:
        opened, go = asyncio.Event(), asyncio.Event()

        class SlowGateway(FakeModelGateway):
            async def open(self, *args: Any, **kwargs: Any) -> Any:
                route = await super().open(*args, **kwargs)
                opened.set()
                await go.wait()
                return route

        rollouts.gateway = SlowGateway()
        use = rollouts.queue("r1")
        use.begin()
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(rollouts.open_route(use))
            await opened.wait()
            await rollouts.policies.update("p", update("v2", "swap"))
            go.set()
        route = opening.result()
        await route.call({})
        assert versions(route) == ["v2"]

    run(body)


def test_the_key_is_sent_upstream_and_shown_to_nobody() -> None:
    async def body(rollouts: Rollouts) -> None:
        endpoint = {"url": "http://127.0.0.1:1/v1", "model": "m", "api_key": "canary-key"}
        secret = PolicyUpdate.model_validate({"version": "v2", "endpoint": endpoint})
        status = await rollouts.policies.update("p", secret)
        assert "canary-key" not in status.model_dump_json() + repr(status)
        use = rollouts.queue("r1")
        use.begin()
        assert use.weights.endpoint.headers["Authorization"] == "Bearer canary-key"
        assert "canary-key" not in repr(use.weights)

    run(body)


def test_a_server_for_simulated_users_stays_theirs() -> None:
    endpoint = policy_endpoint(ModelEndpoint(url="http://policy/v1", model="m"))
    own = RunConfig.model_validate({"model": {"base_url": "http://users/v1"}})
    assert configured_for(own, endpoint).model.base_url == "http://users/v1"
    alone = configured_for(RunConfig(), endpoint)
    assert (alone.model.base_url, alone.agent.model) == ("http://policy/v1", "m")
    assert alone.model.upstream == "vllm"


def test_a_rollout_without_a_gateway_is_refused() -> None:
    async def body(rollouts: Rollouts) -> None:
        use = rollouts.queue("r1")
        with pytest.raises(BenchFlowError, match="needs the model gateway"):
            use.prepare(planes_with(None))

    run(body)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("queue"), st.booleans()),
        st.tuples(st.just("start"), st.integers(0, 5)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(
            st.sampled_from(["finish", "swap", "park", "drop"]), st.none() | st.integers(0, 2)
        ),
    ),
    max_size=25,
)


@given(_STEPS)
def test_no_use_is_too_old_and_each_one_calls_a_version_that_was_registered(
    steps: list[tuple[Any, Any]],
) -> None:
    async def body(rollouts: Rollouts) -> None:
        uses: list[PolicyUse] = []
        registered, limit = 1, None
        for at, (kind, value) in enumerate(steps):
            dropped = {rollout for rollout, order in rollouts.orders if order == "drop"}
            live = [use for use in uses if use.rollout not in dropped]
            if kind == "queue":
                uses.append(rollouts.queue(f"r{at}", pinned=value))
            elif kind == "start" and value < len(live) and not live[value].is_running:
                live[value].begin()
            elif kind == "end" and value < len(live):
                live[value].close()
                uses.remove(live[value])
            elif kind in ("finish", "swap", "park", "drop"):
                registered, limit = registered + 1, value
                new = update(f"v{registered}", kind, max_staleness=value)
                status = await rollouts.policies.update("p", new)
                running = [use for use in uses if use.is_running]
                assert sum(status.in_flight.values()) == len(running)
                for use in running:
                    assert limit is None or registered - use.first.number <= limit
                    if kind == "swap":
                        assert use.weights.version == f"v{registered}"
                    assert kind != "drop"
            for use in uses:
                assert 1 <= use.first.number <= use.weights.number <= registered

    run(body)
