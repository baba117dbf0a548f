"""What the tests of cheats share: one task, in our format and in Harbor's, and who plays it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts import RolloutTree, SandboxProvider, Task, VerifyResult
from benchflow_engine.cheating import CheatOutcome, try_cheats
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_reward.cheats import Cheat

FILES = {
    "task.toml": """name = "sum"
artifacts = ["/workspace/answer.json"]
[environment]
user = "root"
storage_mb = 32
pids = 128
[verifier]
timeout_sec = 10
""",
    "instruction.md": "Write the total to answer.json.\n",
    "tests/test.sh": """cd /workspace
if python3 -m unittest discover -s /tests -p 'check_*.py'; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
""",
    "tests/check_answer.py": """import json, unittest
from pathlib import Path

class Check(unittest.TestCase):
    def test_answer(self):
        expected = json.loads(Path("/tests/expected.json").read_text())
        self.assertEqual(json.loads(Path("/workspace/answer.json").read_text()), expected)
""",
    "tests/expected.json": '{"total": 42}',
    "solution/solve.sh": "echo '{\"total\": 42}' > answer.json\n",
}
HARBORS = {
    **FILES,
    "task.toml": """[agent]
user = "root"
[verifier]
timeout_sec = 10.0
[environment]
workdir = "/workspace"
memory_mb = 512
docker_image = "IMAGE"
""",
    "environment/.keep": "",
    "tests/test.sh": "#!/bin/bash\n" + FILES["tests/test.sh"],
    "solution/solve.sh": "#!/bin/bash\n" + FILES["solution/solve.sh"],
}
"""The same, as Harbor has it: graded by its protocol, with the image's own variables."""
WAIT = """cd /workspace
for _ in $(seq 250); do
  if [ -e answer.json ] && [ ! -s answer.json ]; then sleep 0.1; fi
done
"""
"""What tests begin with that take some time: a cheat that waits for them fills an empty answer."""
SEPARATE = {
    **HARBORS,
    "task.toml": 'artifacts = ["answer.json"]\n'
    + HARBORS["task.toml"].replace("[verifier]", '[verifier]\nenvironment_mode = "separate"'),
}
"""The same, with a verifier that gets the answer alone."""
_STEPS = "".join(f'[[steps]]\nname = "{name}"\n{{0}}' for name in ("one", "two"))
STEPPED = {
    **{name: text for name, text in HARBORS.items() if name.startswith(("env", "tests/"))},
    "task.toml": HARBORS["task.toml"] + _STEPS.format(""),
    "steps/one/instruction.md": FILES["instruction.md"],
    "steps/one/solution/solve.sh": HARBORS["solution/solve.sh"],
    "steps/two/instruction.md": "Add one to the total.\n",
    "steps/two/solution/solve.sh": HARBORS["solution/solve.sh"].replace("42", "43"),
    "steps/two/tests/expected.json": '{"total": 43}',
    "steps/two/workdir/setup.sh": "#!/bin/sh\ntouch begun\n",
}
"""The same in two steps, the second of which is prepared by a script in the agent's directory."""
IMPATIENT = {
    **STEPPED,
    "task.toml": HARBORS["task.toml"] + _STEPS.format("[steps.verifier]\ntimeout_sec = 2.0\n"),
}
"""The same, for who waits as long as a step's tests may take: by default ten minutes."""
SIDECAR = """services:
  main:
    volumes: ["shared:/shared"]
  beside:
    image: IMAGE
    command: ["sleep", "infinity"]
    volumes: ["shared:/shared"]
volumes: {shared: {}}
"""


def write(root: Path, files: dict[str, str], image: str = "") -> Path:
    """Write a task below `root`, with `image` for each IMAGE."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("IMAGE", image))
    return root


def slow(files: dict[str, str]) -> dict[str, str]:
    """Return a task whose tests take some time before they look at an empty answer."""
    script = files["tests/test.sh"].replace("cd /workspace\n", WAIT)
    task = files["task.toml"].replace("timeout_sec = 10", "timeout_sec = 60")
    return {**files, "tests/test.sh": script, "task.toml": task}


def options(provider: SandboxProvider, design: str, agent: str = "oracle") -> RunConfig:
    return run_config(agent=agent, sandbox=provider.name, isolation=design, offline=True)


def tried(
    provider: SandboxProvider, task: Task, design: str, chosen: Sequence[Cheat]
) -> dict[str, CheatOutcome]:
    """Try cheats, and return what each got."""

    async def main() -> list[CheatOutcome]:
        async with provider:
            return await try_cheats(provider, task, options(provider, design), chosen)

    return {each.cheat: each for each in asyncio.run(main())}


def paid(found: dict[str, CheatOutcome]) -> dict[str, str | None]:
    """Return those that got the full reward, and how its integrity was graded."""
    return {name: one.integrity for name, one in found.items() if one.verdict != "stopped"}


def graded(
    provider: SandboxProvider, tasks: dict[str, Task], design: str
) -> dict[str, tuple[RolloutTree, VerifyResult | None]]:
    """Let the oracle do tasks; return what became of each, and the verdict if there is one."""

    async def one(task: Task) -> tuple[RolloutTree, VerifyResult | None]:
        tree = (await run_in(provider, task, options(provider, design))).tree
        return tree, tree.leaves[0].results.get("reward")

    async def main() -> dict[str, tuple[RolloutTree, VerifyResult | None]]:
        async with provider, asyncio.TaskGroup() as group:
            done = {name: group.create_task(one(task)) for name, task in tasks.items()}
        return {name: each.result() for name, each in done.items()}

    return asyncio.run(main())
