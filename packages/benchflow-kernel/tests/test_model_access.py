"""How a sandbox reaches the model: chosen by what the provider and the task's network allow."""

import asyncio
import time
from typing import get_args

import pytest
from benchflow_contracts import Endpoint, NetworkMode
from benchflow_contracts.gateway import CallBudget
from benchflow_kernel import GroupBranch, ModelConfig, ValueBranch
from benchflow_kernel.config import AccessConfig
from benchflow_kernel.world.world import World
from benchflow_testing.fakes import FakeModelGateway, FakeSandboxProvider

URL = "https://gw.example:8443"


class PublicGateway(FakeModelGateway):
    """A fake gateway whose routes have a URL for other machines."""

    def __init__(self):
        super().__init__()
        self.has_child = asyncio.Event()
        self.open_nodes = []
        """For each route, the nodes whose tokens were valid when it was opened."""

    async def open(self, rollout_id, node, **options):
        self.open_nodes.append([each.node for each in self.routes if not each.closed])
        route = await super().open(rollout_id, node, **options)
        route.node, route.budget = node, options["budget"]
        if len(self.routes) > 1:
            self.has_child.set()

        async def publish(*, seconds):
            route.seconds = seconds
            headers = {"Authorization": f"Bearer token-of-{node}"}
            url = f"{URL}/r/{rollout_id}/n/{node}"
            return Endpoint(url=url, headers=headers, expires_at=time.time() + seconds)

        route.publish = publish
        return route


@pytest.fixture
def reach(rig):
    """Run a rollout with a model access; return its tree and the model's door, if it was made."""

    def run(mode, *, network=None, hosts=(), outside=(), doors=None, egress=None, **more):
        environment = {} if network is None else {"network": network}
        if hosts:
            environment["allowed_hosts"] = list(hosts)
        rig.task_config["environment"] = environment
        rig.gateway = PublicGateway()
        access = AccessConfig(mode=mode, gateway_url=URL, **more)
        rig.config["model"] = ModelConfig(base_url="http://127.0.0.1:9/v1", access=access)
        planes = rig.planes

        def without_doors():
            made = planes()
            modes = frozenset(get_args(NetworkMode))
            rig.provider.add_capabilities(
                doors=doors,
                outside_paths=frozenset(outside),
                network_modes=modes,
                **({} if egress is None else {"egress_networks": frozenset(egress)}),
            )
            return made

        rig.planes = without_doors
        tree = rig.run()
        sessions = rig.agent.sessions
        return tree, sessions[0].sandbox.spec.door("model") if sessions else None

    return run


def test_a_token_is_in_the_sandbox_and_in_the_record_that_says_so(reach, rig):
    tree, door = reach("token", outside=["token"], token_calls=7)
    assert tree.status == "completed"
    assert door.inside == Endpoint(
        url=f"{URL}/r/r1/n/n0",
        headers={"Authorization": "Bearer token-of-n0"},
    )
    assert tree.doors["model"] == "token"
    report = tree.leaves[0].results["reward"].meta["integrity"]
    assert report == {"credential": "a token for the model was in the sandbox"}
    (route,) = rig.gateway.routes
    assert (route.budget, route.seconds, route.closed) == (CallBudget(calls=7), 3600, True)


def test_egress_leaves_the_token_to_the_provider(reach):
    tree, door = reach("egress", outside=["egress"])
    assert (door.inside.headers, door.headers) == ({}, {"Authorization": "Bearer token-of-n0"})
    assert tree.doors["model"] == "egress"
    assert "integrity" not in tree.leaves[0].results["reward"].meta


def test_a_token_ends_with_the_deadline_of_its_rollout(reach, rig):
    rig.config["deadline_sec"] = 90
    reach("token", outside=["token"])
    assert 1 <= rig.gateway.routes[0].seconds <= 90


@pytest.mark.parametrize(
    ("doors", "outside", "chosen"),
    [
        ("tunnel", ["egress", "token"], None),
        (None, ["egress", "token"], "egress"),
        (None, ["token"], "token"),
    ],
)
def test_auto_takes_the_tunnel_then_egress_then_a_token(reach, doors, outside, chosen):
    tree, door = reach("auto", doors=doors, outside=outside)
    assert tree.status == "completed"
    assert door.path == chosen


@pytest.mark.parametrize(
    ("mode", "network", "hosts", "outside", "problem"),
    [
        ("token", "none", (), ["token"], "is 'none'"),
        ("egress", "none", (), ["egress"], "is 'none'"),
        ("token", None, (), [], "cannot open the network 'model-only'"),
        ("token", "allowlist", ["example.org"], [], "does not list 'gw.example'"),
        ("egress", "allowlist", ["gw.example"], ["token"], "does not add headers"),
        ("auto", None, (), [], "'egress'"),
    ],
)
def test_a_network_that_does_not_allow_the_url_ends_the_rollout_before_its_agent(
    reach, rig, mode, network, hosts, outside, problem
):
    tree, door = reach(mode, network=network, hosts=hosts, outside=outside)
    assert door is None
    assert tree.status == "failed"
    assert tree.error.type == "SandboxUnsupportedError"
    assert problem in tree.error.message
    assert rig.gateway.routes == []


@pytest.mark.parametrize(("network", "status"), [("public", "completed"), (None, "failed")])
def test_a_provider_that_adds_headers_in_open_networks_refuses_others(reach, network, status):
    tree, door = reach("egress", network=network, outside=["egress"], egress=["public"])
    assert tree.status == status
    assert (door is None) == (status == "failed")


def test_a_list_of_hosts_with_the_gateway_allows_a_token(reach):
    tree, door = reach("token", network="allowlist", hosts=["gw.example"])
    assert (tree.status, door.path) == ("completed", "token")


def test_a_live_fork_is_refused_because_its_agent_has_the_token_of_its_parent(reach, rig):
    rig.provider = FakeSandboxProvider()
    rig.config["branch"] = GroupBranch(n=2)
    tree, _ = reach("token", outside=["token"])
    assert tree.error.type == "UsageError"
    assert "live fork" in tree.error.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "token"},
        {"mode": "egress"},
        {"bind": "8443"},
        {"token_sec": 100_000},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(wrong):
    with pytest.raises(ValueError, match=r"needs the URL|address with a port|less than or equal"):
        AccessConfig(**wrong)


def test_the_token_of_a_parent_is_of_no_use_when_a_child_with_its_files_starts(
    reach, rig, monkeypatch
):
    rig.config["branch"] = GroupBranch(n=2)
    close = World.aclose

    async def close_late(world):
        await rig.gateway.has_child.wait()
        return await close(world)

    monkeypatch.setattr(World, "aclose", close_late)
    tree, _ = reach("token", outside=["token"])
    assert tree.status == "completed"
    root, *children = rig.gateway.open_nodes
    assert (root, len(children)) == ([], 2)
    assert all("n0" not in nodes for nodes in children)


def test_a_parent_with_a_token_does_not_continue_beside_children_with_its_files(reach, rig):
    rig.config["branch"] = GroupBranch(n=2, then=ValueBranch(n=2))
    tree, _ = reach("token", outside=["token"])
    assert tree.error.type == "UsageError"
    assert "in their files" in tree.error.message
