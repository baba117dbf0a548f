"""Inspect for BenchFlow, in both directions.

`export` writes logs of Inspect without Inspect's package. The other parts need the extra
`inspect` and are imported by Inspect (`sandbox`), or by BenchFlow for a task of Inspect.
"""
