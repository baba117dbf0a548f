"""The one outside address of a box."""
