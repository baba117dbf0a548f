"""Live snapshots: files, processes and sockets of a sandbox, at one instant."""
