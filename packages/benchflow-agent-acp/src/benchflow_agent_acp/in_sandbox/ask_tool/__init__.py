"""The portable question tool: an MCP server for the agent, and a broker for BenchFlow.

Standard library only, Python >= 3.11, runs as the agent's user.
"""
