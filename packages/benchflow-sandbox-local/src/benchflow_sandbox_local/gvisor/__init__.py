"""Sandboxes whose kernel is gVisor's: the second engine of live snapshots."""
