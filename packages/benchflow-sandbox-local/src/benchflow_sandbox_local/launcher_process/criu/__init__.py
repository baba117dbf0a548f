"""Run CRIU, and restore state that CRIU does not restore."""
