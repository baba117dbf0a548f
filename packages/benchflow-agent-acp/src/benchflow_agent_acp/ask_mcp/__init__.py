"""A question tool for agents that have none: an MCP server inside the sandbox.

`inside/` is what runs there. The agent starts the server, the agent plane starts the
broker, and the two meet at a socket of the box: the host is reached over the broker's
pipes only, so that a live fork carries all of it.
"""
