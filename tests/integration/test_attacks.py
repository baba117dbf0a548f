"""Attacks on the verdict, from inside a real box, as the unprivileged agent.

Each attack tries to get reward 1 without the answer. In hermetic grading all score 0.
The same tasks graded in `shared` isolation show that the attacks are real: `shared`
below says what each one gets there.
"""

import asyncio
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchflow_contracts import (
    Evidence,
    LiveWorld,
    RewardError,
    RolloutNode,
    Sandbox,
    SandboxSpec,
    Task,
    TaskConfig,
    VerifyResult,
)
from benchflow_reward import ScriptVerifier
from benchflow_sandbox_local import LocalProvider

# The careless task: its tests run in the agent's directory, its environment names
# paths that the agent can write, and its log and test directories are open to all.
CARELESS = {
    "env": {
        "PATH": "/home/agent/bin:/usr/local/bin:/usr/bin:/bin",
        "BASH_ENV": "/workspace/.env",
        "PYTHONPATH": "/workspace/lib",
    },
    "setup_commands": [
        {"command": "mkdir -p /logs/verifier /tests && chmod 777 /logs/verifier /tests"}
    ],
}

UNITTEST = """cd /workspace
if python3 -m unittest discover -s /tests -p 'check_*.py'; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
CHECK = """import json, unittest
from pathlib import Path

class Check(unittest.TestCase):
    def test_answer(self):
        expected = json.loads(Path("/tests/expected.json").read_text())
        self.assertEqual(json.loads(Path("/workspace/answer.json").read_text()), expected)
"""

PYTEST = """cp /tests/test_answer.py /workspace/test_answer.py
cd /workspace
export PYTHONPATH=/tests/vendor
if python3 -m pytest -q test_answer.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
PYTEST_CHECK = """import json
from pathlib import Path

def test_answer():
    assert json.loads(Path("/workspace/answer.json").read_text()) == {"total": 42}
"""

# The tests of a task that must run the agent's code: in our process, or out of it.
IN_PROCESS = """cd /tests
python3 /tests/check.py && echo 1 > /logs/verifier/reward.txt && exit 0
echo 0 > /logs/verifier/reward.txt
"""
IN_PROCESS_CHECK = """import sys
sys.path.insert(0, "/workspace")
from solution import add
assert add(2, 3) == 5
"""
ISOLATED = "python3 /tests/check.py > /logs/verifier/reward.txt\n"
ISOLATED_CHECK = """import sys
sys.path.insert(0, "/tests-tools")
from run_untrusted import Limits, UntrustedError, call
try:
    limits = Limits(timeout=2)
    values = [call("/workspace/solution.py", "add", [a, 3], limits) for a in (2, 9)]
    print(1 if values == [5, 12] else 0)
except UntrustedError as error:
    print(error, file=sys.stderr)
    print(0)
"""


@dataclass(frozen=True)
class Attack:
    """What the agent does in its box, and what that gets it in shared isolation."""

    name: str
    script: str
    kind: str = "unittest"
    shared: str = "0"
    """`wins`, `0`, or `unscored`."""


WIN = "echo 1 > /logs/verifier/reward.txt"
ATTACKS = [
    Attack("a planted reward.txt", WIN),
    Attack(
        "a reward that is a link to the agent's own file",
        "echo 1 > ~/one; ln -s ~/one /logs/verifier/reward.txt",
    ),
    Attack(
        "conftest.py and pytest.ini",
        """printf '[pytest]\\naddopts = -q\\n' > pytest.ini
        cat > conftest.py <<'END'
def pytest_runtest_makereport(item, call):
    call.excinfo = None
    from _pytest.reports import TestReport
    return TestReport.from_item_and_call(item, call)
END""",
        kind="pytest",
        shared="wins",
    ),
    Attack(
        "a module json.py beside the answer",
        "echo 'loads = lambda text: 42' > json.py; touch answer.json",
        shared="wins",
    ),
    Attack(
        "a package unittest that passes everything",
        "mkdir unittest; touch unittest/__init__.py; echo > unittest/__main__.py",
        shared="wins",
    ),
    Attack(
        "sitecustomize on PYTHONPATH",
        "mkdir lib; echo 'import os; os._exit(0)' > lib/sitecustomize.py",
        shared="wins",
    ),
    Attack(
        "python3 first on PATH",
        "mkdir ~/bin; printf '#!/bin/sh\\nexit 0\\n' > ~/bin/python3; chmod +x ~/bin/python3",
        shared="wins",
    ),
    Attack("BASH_ENV", f"echo '{WIN}; exit 0' > .env", shared="wins"),
    Attack(
        "a daemon that writes reward.json",
        """setsid sh -c 'while :; do echo "{\\"reward\\": 1}" > /logs/verifier/reward.json;
        sleep 0.01; done' </dev/null >/dev/null 2>&1 &""",
    ),
    Attack(
        "a daemon that waits for the answer to be looked at",
        """mkfifo answer.json; setsid sh -c 'while :; do
        cat /tests/expected.json > answer.json; sleep 1; done' </dev/null >/dev/null 2>&1 &""",
        shared="wins",
    ),
    Attack("an artifact that is a pipe", "mkfifo answer.json", shared="unscored"),
    Attack(
        "an artifact that is a link into the tests",
        "ln -s /tests/expected.json answer.json",
        shared="wins",
    ),
    Attack("an artifact that is a link to /etc/passwd", "ln -s /etc/passwd answer.json"),
    Attack(
        "an artifact directory of devices, sockets and links",
        """mkdir answer.json; ln -s /dev/zero answer.json/z; mkfifo answer.json/p
        mknod answer.json/d c 1 3""",
    ),
    Attack("a huge sparse file", "truncate -s 4T answer.json"),
    Attack(
        "planted tests",
        f"""echo '{WIN}; exit 0' > /tests/test.sh; echo 'loads = lambda t: 1' > /tests/json.py
        touch answer.json""",
        shared="wins",
    ),
    Attack(
        "an exit at import",
        "echo 'import os; os._exit(0)' > solution.py",
        kind="isolated",
    ),
    Attack(
        "a forged value",
        """cat > solution.py <<'END'
import os, sys
print(1)
for fd in range(3, 30):
    try:
        os.write(fd, b'{"word": "", "value": 5}')
    except OSError:
        pass
os._exit(0)
END""",
        kind="isolated",
    ),
    Attack(
        "a value that is equal to all",
        """cat > solution.py <<'END'
class Equal(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def add(a, b):
    return Equal(5)
END""",
        kind="isolated",
    ),
    Attack(
        "code that writes the reward, reads the tests and stays",
        """cat > solution.py <<'END'
import os, subprocess, time
for act in ("echo 1 > /logs/verifier/reward.txt", "cat /tests/check.py", "ls /evidence"):
    subprocess.run(["sh", "-c", act])
def add(a, b):
    if os.fork() == 0:
        os.setsid()
    time.sleep(60)
END""",
        kind="isolated",
    ),
]

HONEST = {
    "unittest": """echo '{"total": 42}' > answer.json""",
    "pytest": """echo '{"total": 42}' > answer.json""",
    "in_process": "echo 'def add(a, b): return a + b' > solution.py",
    "isolated": "echo 'def add(a, b): return a + b' > solution.py",
}


PATIENCE = 60
"""Seconds for the tests of a task: enough for a busy machine."""

HANGS = 6
"""Seconds for the tests where an attack makes them wait until the end of their time."""


def write_task(path: Path, kind: str, seconds: float) -> Task:
    files = {
        "unittest": {"test.sh": UNITTEST, "check_answer.py": CHECK},
        "pytest": {"test.sh": PYTEST, "test_answer.py": PYTEST_CHECK},
        "in_process": {"test.sh": IN_PROCESS, "check.py": IN_PROCESS_CHECK},
        "isolated": {"test.sh": ISOLATED, "check.py": ISOLATED_CHECK},
    }[kind]
    tests = path / "tests"
    tests.mkdir(parents=True)
    for name, text in {**files, "expected.json": '{"total": 42}'}.items():
        (tests / name).write_text(text)
    if kind == "pytest":
        vendor_pytest(tests / "vendor")
    answer = (
        "/workspace/answer.json" if kind in ("unittest", "pytest") else "/workspace/solution.py"
    )
    config = TaskConfig.model_validate(
        {
            "name": "careless",
            "artifacts": [answer],
            "environment": CARELESS,
            "verifier": {"timeout_sec": seconds, "executes_artifacts": kind == "isolated"},
        }
    )
    return Task(id="careless", path=path, instruction="Add up.", config=config, digest="0")


def vendor_pytest(target: Path) -> None:
    """Copy the pytest that runs us: pure Python, so any interpreter of a box can use it."""
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, target / name, ignore=skip)
    py = importlib.util.find_spec("py")
    assert py is not None and py.origin is not None
    shutil.copyfile(py.origin, target / "py.py")


async def agents_box(provider: LocalProvider, task: Task) -> Sandbox:
    """A box as the kernel hands it to the agent."""
    environment = task.config.environment
    box = await provider.create(SandboxSpec(env=environment.env))
    for setup in environment.setup_commands:
        assert (await box.exec(setup.command, user=setup.user)).ok
    return box


def grade(
    path: Path, kind: str, script: str, isolation: str, *, seconds: float = PATIENCE
) -> VerifyResult:
    """Let the agent run `script`, then grade its box."""

    async def main() -> VerifyResult:
        task = write_task(path / "task", kind, seconds)
        provider = LocalProvider(store=path / "store")
        try:
            box = await agents_box(provider, task)
            await box.exec(["/bin/sh", "-c", script], user="agent", env={"PATH": "/usr/bin:/bin"})
            node = RolloutNode(id="leaf")
            spec = SandboxSpec(env=task.config.environment.env)
            world = LiveWorld(sandbox=box, provider=provider, grading_spec=spec)
            evidence = Evidence(task=task, world=world, log_dir=path / "log")
            result = await ScriptVerifier(isolation=isolation).score(node, evidence)
            left = [record async for record in provider.sandboxes()]
            assert len(left) == (1 if isolation == "shared" else 0)
            return result
        except RewardError as error:
            return VerifyResult.unscored(str(error))
        finally:
            await provider.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_attack_gets_a_reward_in_hermetic_grading(attack, tmp_path):
    result = grade(tmp_path, attack.kind, attack.script, "hermetic")
    assert (result.reward, result.grading) == (0, "hermetic"), result


@pytest.mark.parametrize("kind", HONEST)
def test_the_honest_answer_gets_its_reward_in_hermetic_grading(kind, tmp_path):
    result = grade(tmp_path, kind, HONEST[kind], "hermetic")
    assert result.reward == 1, (result, *(p.read_text() for p in tmp_path.glob("log/*.txt")))


def test_an_answer_imported_by_the_verdicts_own_process_is_lost_by_design(tmp_path):
    # No box helps a test that hands its exit code to the agent's code: hence
    # run_untrusted, with which the same attack scores 0 above.
    attack = "echo 'import os; os._exit(0)' > solution.py"
    assert grade(tmp_path, "in_process", attack, "hermetic").reward == 1


# The isolated runner is a part of hermetic and twin grading only.
SHARED = [attack for attack in ATTACKS if attack.kind != "isolated"]


@pytest.mark.parametrize("attack", SHARED, ids=lambda attack: attack.name)
def test_what_the_attacks_get_in_shared_grading(attack, tmp_path):
    seconds = HANGS if attack.shared == "unscored" else PATIENCE
    result = grade(tmp_path, attack.kind, attack.script, "shared", seconds=seconds)
    outcome = {None: "unscored", 0.0: "0", 1.0: "wins"}[result.reward]
    assert outcome == attack.shared, result


@pytest.mark.parametrize("kind", ["unittest", "pytest"])
def test_the_honest_answer_gets_its_reward_in_shared_grading(kind, tmp_path):
    assert grade(tmp_path, kind, HONEST[kind], "shared").reward == 1


def test_a_twin_of_an_honest_box_is_clean(tmp_path):
    result = grade(tmp_path, "unittest", HONEST["unittest"], "twin")
    assert (result.reward, result.grading) == (1, "twin")
    # Nobody marked this box, so the twin's own programs were asked.
    reported = {"grade": "clean", "findings": [], "count": 0, "by": "twin"}
    integrity = dict(result.meta["integrity"])
    assert integrity.pop("observed")["state"] == "unsupported"
    assert integrity == reported


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("touch json.py", "/workspace/json.py"),
        ("touch conftest.py", "/workspace/conftest.py"),
        ("echo 'exec evil' >> ~/.bashrc", "/home/agent/.bashrc"),
    ],
)
def test_a_twin_names_what_the_agent_left_to_steer_the_tests(script, path, tmp_path):
    integrity = grade(tmp_path, "unittest", script, "twin").meta["integrity"]
    assert integrity["grade"] == "suspicious"
    assert path in [finding["path"] for finding in integrity["findings"]]


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("touch /tests/extra.py", "/tests/extra.py"),
        ("ln -s ../tests/expected.json answer.json", "/workspace/answer.json"),
    ],
)
def test_a_twin_whose_grading_paths_were_touched_is_tampered_with(script, path, tmp_path):
    integrity = grade(tmp_path, "unittest", script, "twin").meta["integrity"]
    assert integrity["grade"] == "tampered"
    assert [finding["path"] for finding in integrity["findings"]] == [path]
