import importlib.util
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parent.parent / "hatch_build.py"


@pytest.fixture
def hook(monkeypatch):
    """The build hook as a module, with no CC from outside."""
    monkeypatch.delenv("CC", raising=False)
    spec = importlib.util.spec_from_file_location("native_hatch_build", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requirements(hook, tmp_path):
    plugin = hook.NativeBuildHook(str(HOOK.parent), {}, None, None, str(tmp_path), "wheel")
    return plugin.dependencies()


def fake_compiler(directory, name, status):
    program = directory / name
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)


def test_zig_is_required_where_no_c_compiler_is(hook, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requirements(hook, tmp_path) == [hook.ZIG_REQUIREMENT]


def test_zig_is_required_where_the_compiler_cannot_link_statically(hook, tmp_path, monkeypatch):
    fake_compiler(tmp_path, "gcc", 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requirements(hook, tmp_path) == [hook.ZIG_REQUIREMENT]


def test_a_working_compiler_is_used_and_cc_comes_first(hook, tmp_path, monkeypatch):
    for name in ("gcc", "special"):
        fake_compiler(tmp_path, name, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "special -m64")
    assert requirements(hook, tmp_path) == []
    assert hook.local_compiler() == ["special", "-m64"]


def test_another_system_is_told_that_this_is_for_linux(hook, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="is for Linux"):
        hook.architecture()


def test_the_source_compiles_without_a_warning(tmp_path, compile_program):
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-Os"]
    compile_program(tmp_path / "bf-init", *strict)


def test_the_pagers_source_compiles_without_a_warning(hook, tmp_path):
    strict = ["-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    hook.compile_to(tmp_path / "bf-pager", sorted(HOOK.parent.glob("csrc/pager/*.c")), *strict)


def test_the_links_source_compiles_without_a_warning(hook, tmp_path):
    strict = ["-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    hook.compile_to(tmp_path / "bf-link", hook.link_sources(HOOK.parent), *strict)
