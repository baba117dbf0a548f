"""The outside hosts that a sandbox may reach."""
