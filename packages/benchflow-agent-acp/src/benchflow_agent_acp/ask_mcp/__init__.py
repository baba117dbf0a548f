"""The portable question tool, for agents that have none: an MCP server inside the sandbox.

The programs are in `in_sandbox/ask_tool`. The agent starts the server, and BenchFlow starts the
broker. Server and broker connect over a socket of the sandbox. The host uses only the broker's
pipes, so a live fork copies the whole tool.
"""
