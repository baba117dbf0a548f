"""The factory of the entry point `benchflow.agents: policy`."""

from benchflow_agent_acp import DeclaredAgent, agent_from_package


def policy() -> DeclaredAgent:
    """Return the policy agent."""
    return agent_from_package("benchflow_agent_policy", "policy.toml")
