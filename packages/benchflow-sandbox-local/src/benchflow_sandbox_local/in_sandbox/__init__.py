"""Programs that run inside a sandbox, started by the probes of live snapshots.

Standard library only, Python >= 3.9, one file each. They run as the default user of the sandbox.
"""
