"""Live snapshots: files, processes and sockets of a box, at one instant."""
