"""Statistics of jobs, and SQL over their facts."""
