"""The network of a sandbox whose model's door is not a tunnel. Nothing here runs on E2B."""

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_e2b.cloud import network_of
from benchflow_testing_clouds.e2b_egress import Network

ALL = "0.0.0.0/0"
HEADERS = {"Authorization": "Bearer t"}


def spec_of(path, network="model-only"):
    door = Door(upstream="https://gw.example:8443/r/x/n/y", headers=HEADERS, path=path)
    return SandboxSpec(network=network, doors=(door,))


def test_egress_allows_the_gateway_alone_and_adds_the_token_outside():
    rule = {"transform": {"headers": HEADERS}}
    assert network_of(spec_of("egress")) == {
        "allow_out": ["gw.example"],
        "deny_out": [ALL],
        "rules": {"gw.example": [rule]},
    }


def test_a_public_network_stays_public_beside_the_rule():
    found = network_of(spec_of("egress", "public"))
    assert found["allow_out"] == ["gw.example", ALL]
    assert "deny_out" not in found


@pytest.mark.parametrize(("network", "rules"), [("model-only", {}), ("public", None)])
def test_a_token_needs_no_rule_and_opens_a_closed_network_for_its_gateway_only(network, rules):
    found = network_of(spec_of("token", network))
    assert (None if found is None else found["rules"]) == rules
    assert found is None or (found["allow_out"], found["deny_out"]) == (["gw.example"], [ALL])


def test_a_sandbox_with_a_tunnel_asks_for_no_rules():
    assert network_of(spec_of(None)) is None


def test_none_stays_none(with_provider):
    async def test(provider, server):
        for path in ("egress", "token"):
            with pytest.raises(SandboxUnsupportedError, match="'none'"):
                await provider.create(spec_of(path, "none"))
        assert server.creations == 0

    with_provider(test)


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        ({"allowOut": ["gw.example"]}, "denyOut"),
        ({"rules": {"gw.example": []}}, "not allowed"),
        ({"proxy": "x"}, "unknown fields"),
    ],
)
def test_our_server_refuses_a_network_that_e2b_refuses(network, problem):
    with pytest.raises(ValueError, match=problem):
        Network.of({"network": network})
