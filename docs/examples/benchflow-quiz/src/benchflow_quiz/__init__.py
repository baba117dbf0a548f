"""Quizzes as tasks of BenchFlow, and an exporter of their rewards."""
