# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 whose tasks share a tool server, with a hook before each tool call."""

import verifiers.v1 as vf
from pydantic import Field


class ShelfState(vf.State):
    books: list[str] = Field(default_factory=list)


class ShelfTools(vf.Toolset[vf.SharedToolsetConfig, ShelfState]):
    TOOL_PREFIX = "shelf"

    @vf.tool
    async def put(self, title: str) -> str:
        """Put a book on the shelf."""
        self.state.books.append(title)
        return f"The shelf has {len(self.state.books)} books."


class ShelfData(vf.TaskData):
    title: str


class ShelfTask(vf.Task[ShelfData, ShelfState]):
    @vf.intercept
    def refuse_dust(self, request: vf.Request) -> vf.Request | None:
        """Answer the tool call instead of the tool if the last call names dust."""
        result = request.messages[-1] if request.messages else None
        if not isinstance(result, vf.ToolMessage) or result.content:
            return None
        calls = [c for m in request.messages for c in getattr(m, "tool_calls", None) or ()]
        if "dust" not in calls[-1].arguments:
            return None
        answer = result.model_copy(update={"content": "Dust is not a book."})
        return request.model_copy(update={"messages": [*request.messages[:-1], answer]})

    @vf.reward
    async def is_alone(self, trace: vf.Trace) -> float:
        return float(trace.state.books == [self.data.title])

    @vf.reward(weight=0.5)
    async def is_refused(self, trace: vf.Trace) -> float:
        return float(any("not a book" in str(m.content) for m in trace.tool_messages))


class ShelfTaskset(vf.Taskset[ShelfTask, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [ShelfTools(vf.SharedToolsetConfig())]

    def load(self):
        for title in ("Emma", "Ulysses"):
            prompt = f"Put {title} and dust on the shelf."
            yield ShelfTask(ShelfData(id=title, prompt=prompt, title=title), self.config.task)


__all__ = ["ShelfTaskset"]


if __name__ == "__main__":
    ShelfTools.run()
