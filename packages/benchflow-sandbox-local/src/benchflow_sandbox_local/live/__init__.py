"""Live snapshots: files, processes and sockets of a box, from one instant."""
