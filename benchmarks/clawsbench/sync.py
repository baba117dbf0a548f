"""Put the shared files and the baselines into every task, which must stand alone.

`python sync.py` writes; `python sync.py --check` exits with 1 when something is stale.
"""

import json
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE / "images" / "clawsbench-base" / "rootfs" / "usr" / "local" / "bin"
SERVICES = {"claw-gmail": "gmail", "claw-gcal": "gcal"}


def dump(database: Path) -> dict[str, object]:
    """Return the tables of a database, as a state query has them."""
    db = sqlite3.connect(database)
    try:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        tables: dict[str, object] = {}
        for (name,) in names.fetchall():
            cursor = db.execute(f"SELECT * FROM {name} ORDER BY 1, 2")
            columns = [each[0] for each in cursor.description]
            tables[name] = {"columns": columns, "rows": [list(row) for row in cursor]}
        return tables
    finally:
        db.close()


def baseline(task: Path) -> str:
    """Return the world of a task before any agent, as JSON."""
    state: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for command, name in SERVICES.items():
            database = Path(folder) / f"{name}.db"
            seed = task / "environment" / "files" / "data" / "seed" / f"{name}.json"
            launch = [sys.executable, "-I", BIN / command]
            subprocess.run([*launch, "--db", database, "seed", seed], check=True)
            state[f"/data/{name}.db"] = dump(database)
    return json.dumps(state, ensure_ascii=False, indent=1) + "\n"


def wanted() -> dict[Path, str]:
    """Return every derived file and what belongs into it."""
    grading = (HERE / "shared" / "grading" / "world.py").read_text()
    skill = (HERE / "shared" / "skill" / "SKILL.md").read_text()
    files: dict[Path, str] = {}
    for task in sorted(path.parent for path in (HERE / "tasks").glob("*/task.toml")):
        files[task / "tests" / "world.py"] = grading
        files[task / "tests" / "baseline.json"] = baseline(task)
        files[task / "environment" / "skills" / "claw-office" / "SKILL.md"] = skill
    return files


def stale() -> list[Path]:
    """Return the derived files that are missing or old."""
    return [
        path for path, text in wanted().items() if not path.is_file() or path.read_text() != text
    ]


def main() -> int:
    """Write, or only check."""
    if "--check" in sys.argv[1:]:
        left = stale()
        for path in left:
            print(f"stale: {path.relative_to(HERE)}")
        return 1 if left else 0
    for path, text in wanted().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
