"""Stateful environments for BenchFlow, from one environment.toml manifest."""
