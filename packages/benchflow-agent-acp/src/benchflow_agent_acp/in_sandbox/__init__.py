"""Programs that run inside the sandbox.

Standard library only, Python >= 3.11, run as the agent's user. `scripted_agent.py` is the scripted
agent. `ask_tool/` is the MCP server of the portable question tool, and its broker.
"""
