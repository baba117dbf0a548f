# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 whose task needs an image."""

import verifiers.v1 as vf


class BoxTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        data = vf.TaskData(id="box", prompt="Work.", image="python:3.12-slim")
        yield vf.Task(data, self.config.task)


__all__ = ["BoxTaskset"]
