"""A program that runs environments of verifiers: standard library and verifiers, Python >= 3.11.

The Python of the operator executes it, in an environment that has verifiers and not BenchFlow.
It reads requests as JSON lines from its standard input, and ends with it.
"""
