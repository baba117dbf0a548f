"""Programs that the probes of live snapshots start inside a sandbox.

Standard library only, Python >= 3.9, one file each. They run as the default user of the sandbox.
"""
