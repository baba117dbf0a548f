"""BenchFlow's agents as solvers of Inspect. Needs the extra `inspect`."""
