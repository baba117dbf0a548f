"""Every cheat that is shipped, by an agent that is root, in each design and on both sandboxes."""

import asyncio

import pytest
from benchflow.cheating import try_cheats
from benchflow.options import RunOptions
from benchflow.rollout import run_in
from benchflow_adapters_harbor import HarborAdapter
from benchflow_kernel import load_task
from benchflow_reward.cheats import cheats
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider

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
SIDECAR = """services:
  main:
    volumes: ["shared:/shared"]
  beside:
    image: IMAGE
    command: ["sleep", "infinity"]
    volumes: ["shared:/shared"]
volumes: {shared: {}}
"""
IN_A_TWIN = {"answers-linked", "stdlib-patched", "usercustomize"}
"""They work there, and are seen."""
IN_NONE = {"reward-daemon", "tests-raced", "tests-watched"}
"""They need a process of the agent's beside the tests."""
DESIGNS = ["hermetic", "twin", "shared"]
GRADES = {"hermetic": None, "twin": "clean", "shared": "suspicious"}
"""What the honest get."""


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def task(tmp_path):
    return load_task(write(tmp_path / "sum", FILES))


@pytest.fixture
def harbors(tmp_path, image):
    def load(**more):
        files = {name: text.replace("IMAGE", image) for name, text in {**HARBORS, **more}.items()}
        return HarborAdapter().load_task(write(tmp_path / "sum", files))

    return load


@pytest.fixture(params=["local", "docker"])
def provider(request, tmp_path):
    if request.param == "local":
        return LocalProvider(store=tmp_path / "store")
    image = request.getfixturevalue("image")
    return DockerProvider(image=image, store=tmp_path / "store")


def options(provider, design, agent="oracle"):
    return RunOptions(agent=agent, sandbox=provider.name, isolation=design, offline=True)


def tried(provider, task, design, only=None):
    chosen = [cheat for cheat in cheats() if only is None or cheat.name in only]

    async def main():
        async with provider:
            return await try_cheats(provider, task, options(provider, design), chosen)

    return {each.cheat: each for each in asyncio.run(main())}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_cheat_gets_a_reward_in_hermetic_grading(provider, task):
    found = tried(provider, task, "hermetic")
    assert {name: one for name, one in found.items() if one.verdict != "stopped"} == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cheat_that_gets_a_reward_in_a_twin_has_tampered_with_it(provider, task):
    found = tried(provider, task, "twin")
    won = {name: one.integrity for name, one in found.items() if one.verdict != "stopped"}
    # Root owns what a twin is made of, so some of them work; none of them unseen.
    assert won
    assert set(won.values()) == {"tampered"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cheat_that_gets_a_reward_of_harbors_tests_has_tampered_with_it(provider, harbors):
    found = tried(provider, harbors(), "twin")
    won = {name: one.integrity for name, one in found.items() if one.verdict != "stopped"}
    assert won
    assert set(won.values()) == {"tampered"}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_beside_services_a_twin_sees_the_same(tmp_path, image, harbors):
    task = harbors(**{"environment/docker-compose.yaml": SIDECAR})
    provider = DockerProvider(image=image, store=tmp_path / "store")
    found = tried(provider, task, "twin", only=IN_A_TWIN | IN_NONE)
    won = {name: one.integrity for name, one in found.items() if one.verdict != "stopped"}
    assert won == dict.fromkeys(IN_A_TWIN, "tampered")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_cheats_are_real_in_shared_grading_and_no_verdict_is_clean(provider, task):
    found = tried(provider, task, "shared")
    assert {"tests-read", "answers-piped"} <= {
        n for n, one in found.items() if one.verdict == "won"
    }
    assert {"python-replaced", "stdlib-patched"} <= {
        name for name, one in found.items() if one.verdict == "flagged"
    }
    graded = {one.integrity for one in found.values() if one.reward is not None}
    assert graded == {"suspicious", "tampered"}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("design", DESIGNS)
def test_the_honest_get_what_they_earned(provider, task, design):
    async def main():
        async with provider:
            for agent, earned in (("oracle", 1), ("nop", 0)):
                result = await run_in(provider, task, options(provider, design, agent))
                verdict = result.tree.leaves[0].results["reward"]
                assert result.reward == earned, verdict
                assert verdict.integrity == GRADES[design], verdict.meta

    asyncio.run(main())


def test_there_are_cheats_of_every_kind_and_each_says_what_it_is():
    assert len(cheats()) >= 25
    assert all(cheat.attempt and cheat.stopped for cheat in cheats())
