# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 whose environment has two agents."""

import verifiers.v1 as vf


class SeatsConfig(vf.EnvConfig):
    white: vf.AgentConfig = vf.AgentConfig()
    black: vf.AgentConfig = vf.AgentConfig()


class SeatsEnv(vf.Env[SeatsConfig]):
    async def run(self, task, agents):
        await agents.white.run(task)
        await agents.black.run(task)


class SeatsTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        yield vf.Task(vf.TaskData(id="game", prompt="Move."), self.config.task)


__all__ = ["SeatsEnv", "SeatsTaskset"]
