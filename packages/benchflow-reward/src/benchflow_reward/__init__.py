"""Verifiers, reward functions, rubrics and judges for BenchFlow."""
