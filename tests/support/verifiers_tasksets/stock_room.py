# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 with a tool server: move boxes until a shelf has enough."""

import verifiers.v1 as vf


class StockState(vf.State):
    moved: int = 0


class StockTools(vf.Toolset[vf.ToolsetConfig, StockState]):
    @vf.tool
    async def move_boxes(self, count: int) -> str:
        """Move boxes from the store to the shelf."""
        if count < 1:
            raise ValueError("count must be at least 1")
        self.state.moved += count
        return f"The shelf has {self.state.moved} boxes."


class StockData(vf.TaskData):
    wanted: int


class StockTask(vf.Task[StockData, StockState]):
    @classmethod
    def toolsets(cls, config):
        return [StockTools(vf.ToolsetConfig())]

    @vf.reward
    async def filled(self, trace: vf.Trace) -> float:
        return min(trace.state.moved / self.data.wanted, 1.0)

    @vf.metric
    async def says_done(self, trace: vf.Trace) -> float:
        return float("done" in trace.last_reply.lower())


class StockTaskset(vf.Taskset[StockTask, vf.TasksetConfig]):
    def load(self):
        for wanted in (4, 10):
            data = StockData(
                id=f"shelf-{wanted}", prompt=f"Fill the shelf with {wanted} boxes.", wanted=wanted
            )
            yield StockTask(data, self.config.task)


__all__ = ["StockTaskset"]


if __name__ == "__main__":
    StockTools.run()
