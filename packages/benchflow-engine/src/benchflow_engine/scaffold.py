"""The task that `bench tasks init` writes: small, complete and correct."""

from pathlib import Path

from benchflow_contracts import UsageError

_FILES = {
    "task.toml": """\
name = "{name}"
description = "Write a greeting to a file."
artifacts = ["/workspace/greeting.txt"]

[verifier]
type = "script"
isolation = "hermetic"
timeout_sec = 60
""",
    "instruction.md": """\
Write the line `hello, world` to `/workspace/greeting.txt`.
""",
    "tests/test.sh": """\
#!/bin/sh
# Runs in another sandbox, which holds only the declared artifacts.
reward=0
if [ "$(cat /workspace/greeting.txt 2>/dev/null)" = "hello, world" ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
""",
    "solution/solve.sh": """\
#!/bin/sh
echo "hello, world" > /workspace/greeting.txt
""",
}


def write_task(path: Path) -> list[str]:
    """Write the task to `path` and return the names of its files.

    Raises:
        UsageError: `path` exists, or cannot be created.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(
            f"{str(path)!r} exists", hint="give the name of a new directory"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot create {str(path)!r}: {error}") from error
    for name, text in _FILES.items():
        file = path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("{name}", _task_name(path)), encoding="utf-8")
        if name.endswith(".sh"):
            file.chmod(0o755)
    return list(_FILES)


def _task_name(path: Path) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.name)
    return kept.lower().lstrip("._-") or "task"
