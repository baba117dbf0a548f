"""The scripted agent: `agent.py` is a program, run inside the sandbox, not a module."""

__all__: list[str] = []
