"""Sandboxes on gVisor's kernel: the second engine of live snapshots."""
