"""Git repositories on this machine, for tests of what is fetched."""

import os
import subprocess
from pathlib import Path

from harbor_corpus import write

_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.org",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.org",
}


def git(repository: Path, *args: str) -> str:
    """Run git there and return what it prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _ENV
    done = subprocess.run(
        ["git", "-C", repository, *args], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def repository(root: Path, files: dict[str, str]) -> str:
    """Make a repository with these files and return its commit."""
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    return commit(root, files)


def commit(root: Path, files: dict[str, str]) -> str:
    """Commit these files on top and return the commit."""
    write(root, files)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "x")
    return git(root, "rev-parse", "HEAD")


def below(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}
