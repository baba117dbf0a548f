# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A taskset of verifiers 0.4 with one turn: how many words has a sentence?"""

import verifiers.v1 as vf

SENTENCES = ("a bird in the hand", "two birds", "no bird at all today")


class CountData(vf.TaskData):
    answer: int


class CountTask(vf.Task[CountData]):
    @vf.reward(weight=2.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.reward(weight=0.5)
    async def is_short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 10)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class CountTaskset(vf.Taskset[CountTask, vf.TasksetConfig]):
    def load(self):
        for index, text in enumerate(SENTENCES):
            prompt = f"How many words has this sentence? Answer with the number alone. {text}"
            data = CountData(id=f"words-{index}", prompt=prompt, answer=len(text.split()))
            yield CountTask(data, self.config.task)


__all__ = ["CountTaskset"]
