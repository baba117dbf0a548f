"""Finds a rollout or a job by its path, its id or a unique start of the id."""

from pathlib import Path

from benchflow_contracts import UsageError


def find_rollout(name: str, jobs_dir: Path) -> Path:
    """Return the directory of one rollout.

    Raises:
        UsageError: No name or more than one name matches.
    """
    return _find(name, jobs_dir, "*/*/events.jsonl", "*/events.jsonl", what="rollout")


def find_job(name: str, jobs_dir: Path) -> Path:
    """Return the directory of one job.

    Raises:
        UsageError: No name or more than one name matches.
    """
    return _find(name, jobs_dir, "*/summary.json", what="job")


def _find(name: str, jobs_dir: Path, *patterns: str, what: str) -> Path:
    path = Path(name)
    marker = patterns[0].rsplit("/", 1)[-1]
    if (path / marker).is_file():
        return path
    directories = sorted({file.parent for p in patterns for file in jobs_dir.glob(p)})
    matches = [d for d in directories if d.name == name] or [
        d for d in directories if d.name.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise UsageError(
            f"no {what} {name!r} below {str(jobs_dir)!r}",
            hint="list jobs with `bench eval list`, or give --jobs-dir",
        )
    names = ", ".join(d.name for d in matches[:5])
    raise UsageError(f"{name!r} is the start of several {what}s: {names}", hint="give more letters")
