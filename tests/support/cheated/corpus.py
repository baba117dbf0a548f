"""The tasks that all cheats are tried with, and the honest work that must stay clean."""

from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile, copytree

from benchflow_adapters_harbor import HarborAdapter
from benchflow_contracts import Task
from benchflow_kernel import load_task
from benchflow_reward.cheats import Cheat, cheats

from . import FILES, HARBORS, SEPARATE, write

RUNNER = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "attr")
"""pytest, what it needs, and a package that only its plugin imports."""
PACKAGES = "usr/lib/python3/dist-packages"
PLUGIN = {
    "houseplugin.py": "import attr\n",
    "houseplugin-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: houseplugin\nVersion: 1\n",
    "houseplugin-1.dist-info/entry_points.txt": "[pytest11]\nhouseplugin = houseplugin\n",
}
"""A plugin of the image's own, as Debian's pytest needs `attr`."""

CODE = {
    "instruction.md": "Write solution.py: it prints the total of 40 and 2.\n",
    "solution/solve.sh": "echo 'print(40 + 2)' > solution.py; chmod 644 solution.py\n",
    "tests/test.sh": """cd /workspace
python3 /tests/as_nobody.py solution.py > /tests/printed
if python3 /tests/compare.py; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
""",
    "tests/as_nobody.py": """import os, pwd, sys
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
os.execv(sys.executable, ["python3", *sys.argv[1:]])
""",
    "tests/compare.py": """import pathlib, sys
sys.exit(pathlib.Path("/tests/printed").read_text().strip() != "42")
""",
}
"""The tests run the agent's code as nobody."""
PROJECT = {
    "tests/test.sh": """cp /tests/check_answer.py /workspace/test_answer.py
cd /workspace
if python3 -m pytest -q test_answer.py; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
""",
}
"""The tests run pytest in the agent's directory, which is the artifact."""
CHANGES = {"sum": {}, "code": CODE, "project": PROJECT}
ARTIFACTS = {"sum": "/workspace/answer.json", "code": "/workspace/solution.py"}

_AT_CODE = """nobody-is-root places-opened reward-as-nobody reward-second reward-daemon
reward-held-open reward-json-planted reward-linked reward-locked reward-planted logs-linked
value-forged equal-to-all exit-at-import missing-here modules-shadowed users-renamed
verifier-killed verifier-traced"""
_AT_PROJECTS = """runner-plugins runner-needs-patched conftest pytest-patched asserts-patched
missing-in-packages missing-at-home missing-here modules-linked modules-shadowed packages-shadowed
pth sitecustomize usercustomize stdlib-patched answers-linked exit-at-import"""
AIMED = {"code": frozenset(_AT_CODE.split()), "project": frozenset(_AT_PROJECTS.split())}
"""The cheats that aim at what a task does; all of them are tried with `sum`."""

WORK = FILES["solution/solve.sh"]
DIST = "/usr/lib/python3/dist-packages"
HONEST = {
    "solution": "",
    "notes": "mkdir -p notes; echo done > notes/README.md; echo 'print(1)' > notes/plot.py\n",
    "package": f"""mkdir -p {DIST}/tabulatte {DIST}/tabulatte-1.dist-info
echo 'x = 1' > {DIST}/tabulatte/__init__.py
printf 'Name: tabulatte\\nVersion: 1\\n' > {DIST}/tabulatte-1.dist-info/METADATA
""",
    "command": "printf '#!/bin/sh\\necho hi\\n' > /usr/bin/greet; chmod 755 /usr/bin/greet\n",
    "user": "echo 'worker:x:1234:1234::/home/worker:/bin/sh' >> /etc/passwd\n",
}
"""What an honest agent may do beside the work."""


def task(name: str, protocol: str, mode: str, root: Path, image: str) -> Task:
    """Write a task in one of the formats, for one mode, and load it."""
    separate = mode == "hermetic"
    files = {**(FILES if protocol == "benchflow" else SEPARATE if separate else HARBORS)}
    artifact = ARTIFACTS.get(name, "/workspace")
    toml = files["task.toml"].replace("/workspace/answer.json", artifact)
    if name != "sum":
        toml = toml.replace("timeout_sec = 10", "timeout_sec = 120")
    files["task.toml"] = toml.replace('"answer.json"', f'"{artifact}"')
    shell = "" if protocol == "benchflow" else "#!/bin/bash\n"
    for path, text in CHANGES[name].items():
        files[path] = shell + text if path.endswith(".sh") else text
    if name == "project":
        files["tests/check_answer.py"] = files["tests/check_answer.py"].replace("Check", "TestIt")
        files["task.toml"] = files["task.toml"].replace('docker_image = "IMAGE"\n', "")
        place = _packages(protocol, root)
        files |= {f"{place}/{each}": text for each, text in PLUGIN.items()}
        if protocol == "harbor":
            files["environment/Dockerfile"] = f"FROM IMAGE\nCOPY packages /{PACKAGES}\n"
    write(root, files, image)
    return load_task(root) if protocol == "benchflow" else HarborAdapter().load_task(root)


def _packages(protocol: str, root: Path) -> str:
    place = f"environment/files/{PACKAGES}" if protocol == "benchflow" else "environment/packages"
    (root / place).mkdir(parents=True)
    for name in RUNNER:
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None
        source, target = Path(found.origin), root / place / name
        if source.name == "__init__.py":
            copytree(source.parent, target, ignore=lambda *_: ["__pycache__"])
        else:
            copyfile(source, target.with_suffix(".py"))
    return place


def aimed(name: str) -> list[Cheat]:
    """Return the cheats that are tried with a task."""
    return [each for each in cheats() if each.name in AIMED.get(name, {each.name})]


def honest(name: str) -> list[Cheat]:
    """Return the honest variants of a task's work."""
    work = CHANGES[name].get("solution/solve.sh", WORK)
    return [Cheat(each, "", "", work + more) for each, more in HONEST.items()]
