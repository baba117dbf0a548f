"""Programs that run inside the sandbox.

Standard library only, Python >= 3.10, run as root by `python3 -IS`. Their text and their request
are sent on standard input, because the agent can read the arguments of every process.
"""
