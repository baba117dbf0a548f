# Raw names below roots of others: pathlib would add nothing here.
# ruff: noqa: PTH101, PTH102, PTH112, PTH114, PTH115, PTH116, PTH123, PTH208, PTH211
"""The host's root as the lowest layer: programs of an allow-list, without secrets."""

import os
import stat

VISIBLE = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "gnu")
"""The only names in the host's root that a sandbox sees. They contain programs."""

EMPTY = ("boot", "home", "media", "mnt", "opt", "root", "run", "srv", "tmp", "var")
_VAR = ("cache", "lib", "local", "log", "mail", "opt", "spool")

# Files below /etc that may contain secrets, even if everyone on the host can read them.
_HIDDEN = {
    "apt/auth.conf",
    "apt/auth.conf.d",
    "apt/sources.list",
    "apt/sources.list.d",
    "containers",
    "crypttab",
    "docker",
    "environment",
    "environment.d",
    "exports",
    "fstab",
    "git",
    "gitconfig",
    "hostname",
    "hosts",
    "kubernetes",
    "machine-id",
    "netplan",
    "netrc",
    "NetworkManager",
    "npmrc",
    "openvpn",
    "pip.conf",
    "postgresql",
    "profile.d",
    "rancher",
    "resolv.conf",
    "ssh",
    "ssl/private",
    "uv",
    "wireguard",
    "xdg/pip",
}
_MAX_FILE, _MAX_ENTRIES = 4 << 20, 20_000


def separate_mounts() -> list[str]:
    """Return the visible directories that are separate file systems."""
    device = os.stat("/").st_dev
    paths: list[str] = []
    for name in VISIBLE:
        path = f"/{name}"
        if os.path.isdir(path) and not os.path.islink(path) and os.stat(path).st_dev != device:
            paths.append(path)
    return paths


def visible_directories() -> list[str]:
    """Return the visible names that are directories on this host, and not symlinks."""
    paths = [f"/{name}" for name in VISIBLE]
    return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]


def divide(paths: list[str], layers: list[str]) -> tuple[list[str], list[str]]:
    """Divide paths of the host so that the layers of an image stay visible.

    Return the paths to bind, and the symlinks to create. If both have a directory at a path, divide
    its entries. For any other path that both have, the image's own entry is visible.
    """
    binds, links = list[str](), list[str]()
    for path in paths:
        over = [layer for layer in layers if os.path.lexists(f"{layer}{path}")]
        if not over:
            (links if os.path.islink(path) else binds).append(path)
        elif all(_is_directory(place) for place in (path, *(f"{layer}{path}" for layer in over))):
            below = [f"{path}/{name}" for name in sorted(os.listdir(path))]
            more = divide(below, over)
            binds += more[0]
            links += more[1]
    return binds, links


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def build_mask(target: str, opaque: str, *, over_host: bool) -> None:
    """Fill the layer over the host's root, or the layer that replaces the host's root.

    With `over_host`, hide each other name of the host. Without, the layer contains only visible
    names, and the directories of programs are bound later.
    """
    os.mkdir(target, 0o755)
    for name in os.listdir("/"):
        path = f"{target}/{name}"
        if name in VISIBLE:
            if not over_host and os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), path)
        elif over_host and name not in {*EMPTY, "etc", "dev", "proc", "sys"}:
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
    for name in (*EMPTY, "etc", "dev", "proc", "sys"):
        os.mkdir(f"{target}/{name}", 0o755)
        os.setxattr(f"{target}/{name}", opaque, b"y")
    os.chmod(f"{target}/root", 0o700)
    os.chmod(f"{target}/tmp", 0o1777)  # noqa: S103, S108 - sticky, inside a sandbox
    _fill_var(f"{target}/var")
    _Etc(f"{target}/etc").copy("")


def _fill_var(var: str) -> None:
    for name in _VAR:
        os.mkdir(f"{var}/{name}", 0o755)
    os.mkdir(f"{var}/tmp")  # noqa: S108 - inside a sandbox
    os.chmod(f"{var}/tmp", 0o1777)  # noqa: S103, S108 - sticky, inside a sandbox
    os.symlink("/run", f"{var}/run")


class _Etc:
    """Copies /etc without unreadable and hidden files."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._count = 0

    def copy(self, below: str) -> None:
        with os.scandir(f"/etc/{below}") as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                self._count += 1
                if path not in _HIDDEN and self._count < _MAX_ENTRIES:
                    self._entry(entry, path)

    def _entry(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            info = entry.stat(follow_symlinks=False)
            target = f"{self._target}/{path}"
            if stat.S_ISLNK(info.st_mode):
                os.symlink(os.readlink(entry.path), target)
            elif stat.S_ISDIR(info.st_mode) and info.st_mode & 0o005 == 0o005:
                os.mkdir(target, stat.S_IMODE(info.st_mode))
                self.copy(f"{path}/")
            elif stat.S_ISREG(info.st_mode) and info.st_mode & 0o004:
                self._file(entry.path, target, info)
        except (FileNotFoundError, PermissionError):
            return  # removed meanwhile, or not readable

    def _file(self, source: str, target: str, info: os.stat_result) -> None:
        if info.st_size > _MAX_FILE:
            return
        with open(source, "rb") as reader, open(target, "wb") as writer:
            writer.write(reader.read(_MAX_FILE))
        os.chmod(target, stat.S_IMODE(info.st_mode) & 0o755)
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
