"""The program of the policy agent, which runs inside the sandbox.

Standard library only, Python >= 3.11, runs as the agent's user. The directory is copied into the
sandbox and started there as `python3 -I DIRECTORY`. The agent has one thread, and its state is in
the process and its session files only, so a live fork needs no special care.
"""
