"""A task in Harbor's format that can be run, and what running it must give."""

from collections.abc import Mapping
from dataclasses import dataclass

Rewards = Mapping[str, float] | None

BASE = "@BASE@"
"""Stands for the image that `.ci/docker` makes, which needs no registry."""

ONCE = "@ONCE@"
"""Stands for what no other build has: Harbor lets one that takes too long go on, and all share the
engine's cache."""

IMAGE = f"FROM {BASE}\nWORKDIR /srv\nSTOPSIGNAL SIGKILL\n"
"""Harbor lets a container's first process ignore its end for ten seconds; not this one."""


@dataclass(frozen=True, slots=True)
class Case:
    """Files by relative path, who is the agent, and the outcome.

    `agent` is `script`, which runs its instruction as a shell script, or Harbor's `oracle` or
    `nop`. `steps` has rewards and exception type of each step that ran.
    """

    files: Mapping[str, str]
    rewards: Rewards
    exception: str | None = None
    steps: tuple[tuple[Rewards, str | None], ...] = ()
    agent: str = "script"


def files(
    script: str = "true\n", test: str = "", toml: str = "", image: str = IMAGE
) -> dict[str, str]:
    """Return a task of one step. The script is its instruction."""
    return {
        "task.toml": toml,
        "instruction.md": script,
        "environment/Dockerfile": image,
        "tests/test.sh": test,
    }


def passes(*checks: str) -> str:
    """Return a test that gives 1 when each check succeeds, and otherwise no reward."""
    return "\n".join(["#!/bin/sh", "set -ex", *checks, "echo 1 > /logs/verifier/reward.txt", ""])
