# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 with tools and a scripted user, which speaks in the environment."""

import verifiers.v1 as vf


class CountTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "count"

    @vf.tool
    def letters(self, word: str) -> str:
        """Count the letters of a word."""
        return str(len(word))


class AskData(vf.TaskData):
    words: list[str]


class AskTask(vf.Task[AskData]):
    @classmethod
    def toolsets(cls, config):
        return [CountTools(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        said = [m.content for m in trace.assistant_messages if not m.tool_calls]
        wanted = [str(len(word)) for word in self.data.words]
        return sum(a == b for a, b in zip(said, wanted, strict=False)) / len(wanted)


class AskEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for word in task.data.words:
                turn = await interaction.turn(f"How many letters has {word}?")
                if turn.terminated:
                    break
        interaction.trace.record_reward("politeness", -0.25)


class AskTaskset(vf.Taskset[AskTask, vf.TasksetConfig]):
    def load(self):
        for words in (["bird", "elephant", "ox"], ["ant", "bee"]):
            data = AskData(id=words[0], words=words, system_prompt="Answer with the number alone.")
            yield AskTask(data, self.config.task)


__all__ = ["AskEnv", "AskTaskset"]


if __name__ == "__main__":
    CountTools.run()
