"""Sockets of the host that lead into a box."""
