"""The policy agent: a small ACP agent that acts through an OpenAI-compatible endpoint.

Copied into the sandbox as a directory and run there as `python3 -I <directory>`, so it
needs the standard library of Python >= 3.11 and nothing else. One thread, and no state
outside of the process and its session files: a live fork of it needs no care.
"""
