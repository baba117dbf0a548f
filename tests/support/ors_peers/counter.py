"""Serve an environment with a published ORS server: `counter.py PACKAGE`. Prints its address.

The task has a target. Each `add` pays 0.25 and shows the sum; reaching the target pays 1 and ends
the episode. `spaces` answers with text whose chunks begin with spaces. `secret` shows a secret.
`boom` raises an error. With openreward, `answer` gets the last message of the model.
"""

import importlib
import socket
import sys

import uvicorn
from pydantic import BaseModel

package = sys.argv[1]
home = importlib.import_module("ors" if package == "ors" else "openreward.environments")
Environment, TextBlock, ToolOutput, tool = (
    getattr(home, name) for name in ("Environment", "TextBlock", "ToolOutput", "tool")
)


class Add(BaseModel):
    number: int


class Counter(Environment):
    def __init__(self, task_spec={}, secrets={}) -> None:  # noqa: B006 - their signature
        super().__init__(task_spec)
        self.secrets = dict(secrets)
        self.total = 0

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"target": 3 + at, "split": split} for at in range(5 if split == "train" else 2)]

    def get_prompt(self):
        return [TextBlock(text=f"Add numbers until the sum is {self.task_spec['target']}.")]

    @tool
    async def add(self, params: Add) -> ToolOutput:
        """Add a number to the sum."""
        self.total += params.number
        is_done = self.total >= self.task_spec["target"]
        return ToolOutput(
            blocks=[TextBlock(text=f"sum {self.total}")],
            reward=1.0 if is_done else 0.25,
            finished=is_done,
        )

    async def score_group(self, candidates):
        """Score by the length of the last message. ors-sdk does not have this route."""
        return [float(len(each.messages[-1].blocks[0].text)) for each in candidates]

    @tool
    async def spaces(self) -> ToolOutput:
        """Return many spaces."""
        return ToolOutput(blocks=[TextBlock(text=" " * 20_000 + "end\u2028\u00a0")])

    @tool
    async def secret(self) -> ToolOutput:
        """Return a secret of the client."""
        return ToolOutput(blocks=[TextBlock(text=str(self.secrets.get("WORD")))])

    @tool
    async def boom(self) -> ToolOutput:
        """Fail."""
        raise ValueError("the tool broke")


server = importlib.import_module("ors" if package == "ors" else "openreward.environments").Server
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(128)
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
app = server([Counter]).app
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])
