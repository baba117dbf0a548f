"""Actions of operators on jobs and rollouts, by the job's own control channel and commands."""
