"""Live streams: one for each browser, of changes of the index and of the logs of rollouts."""
