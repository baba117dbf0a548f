"""The declaration of the policy agent, as the registry finds it."""

from importlib.metadata import entry_points

from benchflow_agent_policy import policy
from benchflow_contracts import AgentCapabilities


def test_the_entry_point_makes_the_policy_agent():
    (point,) = entry_points(group="benchflow.agents", name="policy")
    agent = point.load()()
    assert agent.name == "policy"
    assert agent.decl == policy().decl
    assert agent.declaration_path.name == "policy.toml"


def test_its_capabilities_are_those_of_the_declaration():
    capabilities = policy().capabilities()
    expected = AgentCapabilities(
        protocol="acp",
        version="1.0.0",
        spawns=True,
        ask_user=True,
        session_snapshot="same_path_files",
        proven=capabilities.proven,
    )
    assert capabilities == expected
    assert set(capabilities.proven) == {
        "state",
        "live",
        "live-ask",
        "live-call",
        "replay-ask",
        "replay-call",
        "replay",
    }
