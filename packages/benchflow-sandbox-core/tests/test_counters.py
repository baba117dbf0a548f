"""Whose limit a refusal of the kernel was: read from the files of a control group."""

from pathlib import Path

import pytest
from benchflow_contracts import HostError, SandboxLimitError
from benchflow_sandbox_core.counters import GroupCounters, host_error_if_short


def group(directory: Path, **files: str) -> GroupCounters:
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return GroupCounters(directory, directory)


def test_a_group_that_was_refused_nothing_tells_of_no_shortage(tmp_path: Path) -> None:
    found = group(tmp_path, pids__events="max 0\n", memory__events="oom 0\noom_kill 0\n")
    assert (found.hits("pids"), found.hits("memory"), found.host_shortage()) == (0, 0, None)


@pytest.mark.parametrize(("peak", "host"), [("64", False), ("12", True)])
def test_a_refused_process_is_the_hosts_below_the_groups_limit(
    tmp_path: Path, peak: str, host: bool
) -> None:
    found = group(tmp_path, pids__events="max 3\n", pids__max="64\n", pids__peak=f"{peak}\n")
    assert (found.hits("pids"), found.host_shortage() is not None) == (3, host)


@pytest.mark.parametrize(("oom", "host"), [(1, False), (0, True)])
def test_a_kill_for_memory_is_the_hosts_when_the_unified_group_was_not_full(
    tmp_path: Path, oom: int, host: bool
) -> None:
    found = group(tmp_path, memory__events=f"oom {oom}\noom_kill 1\n")
    assert (found.hits("memory"), found.host_shortage() is not None) == (1, host)


@pytest.mark.parametrize(("peak", "host"), [(256 << 20, False), (120 << 20, True)])
def test_a_kill_for_memory_is_the_hosts_when_the_group_was_not_full(
    tmp_path: Path, peak: int, host: bool
) -> None:
    found = group(
        tmp_path,
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        memory__limit_in_bytes=f"{256 << 20}\n",
        memory__max_usage_in_bytes=f"{peak}\n",
    )
    assert (found.hits("memory"), found.host_shortage() is not None) == (1, host)


def test_a_group_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert GroupCounters(tmp_path / "gone", None).host_shortage() is None


def test_a_limit_is_taken_for_the_hosts_only_when_the_host_was_short() -> None:
    with pytest.raises(HostError, match="no room"), host_error_if_short(lambda: "no room"):
        raise SandboxLimitError("full")
    with pytest.raises(SandboxLimitError), host_error_if_short(lambda: None):
        raise SandboxLimitError("full")
