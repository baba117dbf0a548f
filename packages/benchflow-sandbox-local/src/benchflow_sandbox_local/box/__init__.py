"""Everything that runs in the launcher process: stdlib only, no other room is imported."""
