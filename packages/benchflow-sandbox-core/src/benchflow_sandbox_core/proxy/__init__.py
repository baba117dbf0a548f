"""The outside addresses that a box may reach by name."""
