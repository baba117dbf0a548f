"""Build hook: compile the four static programs and the two libraries into the package.

Uses the machine's C compiler when it can link statically, and otherwise asks the build frontend
for the `ziglang` package, a C compiler that is installed like any other build dependency.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ZIG_REQUIREMENT = "ziglang>=0.13,<0.18"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Os", "-Wall", "-Wextra", "-s")
PROGRAM = ("-static",)
LIBRARY = (
    "-shared",
    "-fPIC",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-sanitize=all",
    "-fvisibility=hidden",
)
# Without a libc, because the libraries run in programs of any libc; the loader resolves errno.
# Only for the linker: with this flag, zig would also remove the headers.
LIBRARY_LINK = ("-nostdlib", "-Wl,-z,now")
# The sources that bf-guest shares with bf-init.
GUEST = ("child.c", "process.c", "request.c", "signals.c")
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
PROBE = '#include <stdlib.h>\nint main(void) { return getenv("PATH") == NULL; }\n'


def architecture() -> str:
    """Return the name of the architecture in wheel tags and for zig."""
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        raise RuntimeError(
            f"benchflow-sandbox-native is for Linux on {sorted(set(ARCHITECTURES.values()))}, "
            f"not {sys.platform!r} on {machine!r}: its programs use Linux namespaces"
        )
    return ARCHITECTURES[machine]


def links_statically(compiler: list[str]) -> bool:
    """Return whether `compiler` can build a static program: many machines lack the static libc."""
    if shutil.which(compiler[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text(PROBE)
        command = [*compiler, "-static", "-o", str(source.with_suffix("")), str(source)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@cache
def local_compiler() -> list[str] | None:
    """Return the command of a working C compiler of this machine."""
    candidates = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    return next((c for c in candidates if c and links_statically(c)), None)


def compile_to(
    output: Path, sources: list[Path], *flags: str, link_flags: tuple[str, ...] = ()
) -> None:
    """Compile to a temporary file and rename it: the present program may be in use."""
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture()}-linux-musl"]
    compiler = [*(local_compiler() or zig), *FLAGS, *flags]
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        objects = [str(Path(directory, source.name).with_suffix(".o")) for source in sources]
        for source, object_file in zip(sources, objects, strict=True):
            _run([*compiler, "-c", "-o", object_file, str(source)])
        fresh = Path(directory, output.name)
        _run([*compiler, *link_flags, "-o", str(fresh), *objects])
        fresh.chmod(0o755)
        fresh.replace(output)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")


def guest_sources(root: Path) -> list[Path]:
    """Return the sources of bf-guest."""
    return [root / "csrc" / name for name in GUEST] + sorted(root.glob("csrc/guest/*.c"))


def link_sources(root: Path) -> list[Path]:
    """Return the sources of bf-link, which contains bf-guest without its `main`."""
    guest = [source for source in guest_sources(root) if source.name != "main.c"]
    return guest + sorted(root.glob("csrc/link/*.c"))


class NativeBuildHook(BuildHookInterface[Any]):
    """Compile for wheels, also for editable ones; an sdist contains only the C source."""

    def dependencies(self) -> list[str]:
        """Require zig only where no C compiler works."""
        if sys.platform != "linux" or local_compiler() is not None:
            return []
        return [ZIG_REQUIREMENT]

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel for every libc: its programs and libraries need none."""
        machine = architecture()
        root = Path(self.root)
        output = root / "src" / "benchflow_sandbox_native" / "bin"
        define = f'-DBF_INIT_VERSION="{self.metadata.version}"'
        compile_to(output / "bf-init", sorted(root.glob("csrc/*.c")), *PROGRAM, define)
        compile_to(output / "bf-guest", guest_sources(root), *PROGRAM)
        compile_to(output / "bf-link", link_sources(root), *PROGRAM)
        compile_to(output / "bf-pager", sorted(root.glob("csrc/pager/*.c")), *PROGRAM)
        for name in ("identity", "engine"):
            sources = sorted(root.glob(f"csrc/{name}/*.c"))
            link = (*LIBRARY_LINK, f"-Wl,-soname,bf-{name}.so")
            compile_to(output / f"bf-{name}.so", sources, *LIBRARY, link_flags=link)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux2014_{machine}.musllinux_1_1_{machine}"
