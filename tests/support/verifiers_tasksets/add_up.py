# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 whose rewards read the messages alone: add numbers by a tool."""

import json

import verifiers.v1 as vf


class AddTools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def add(self, first: int, second: int) -> str:
        """Add two numbers."""
        return str(first + second)


class AddData(vf.TaskData):
    numbers: list[int]


class AddTask(vf.Task[AddData]):
    @classmethod
    def toolsets(cls, config):
        return [AddTools(vf.ToolsetConfig())]

    @vf.reward(weight=2.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(sum(self.data.numbers)))

    @vf.reward(weight=0.5)
    async def used_numbers(self, trace: vf.Trace) -> float:
        """The share of the numbers that the calls of the tool had."""
        calls = [call for each in trace.assistant_messages for call in each.tool_calls or ()]
        used = {value for call in calls for value in json.loads(call.arguments).values()}
        return sum(number in used for number in trace.task.data.numbers) / len(self.data.numbers)

    @vf.metric
    async def tool_text(self, trace: vf.Trace) -> float:
        return float(sum(len(str(each.content)) for each in trace.tool_messages))


class AddTaskset(vf.Taskset[AddTask, vf.TasksetConfig]):
    def load(self):
        for at, numbers in enumerate(([3, 4], [20, 30, 40])):
            prompt = f"Add the numbers {numbers}."
            data = AddData(id=f"sum-{at}", prompt=prompt, numbers=numbers)
            yield AddTask(data, self.config.task)


__all__ = ["AddTaskset"]


if __name__ == "__main__":
    AddTools.run()
