"""Running tasks: from options to a scored rollout on disk."""
