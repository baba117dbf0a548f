import asyncio
import io
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.rootfs.archive import unpack
from benchflow_sandbox_local.rootfs.finder import ImageFinder
from benchflow_sandbox_local.rootfs.store import ImageStore
from benchflow_sandbox_native import init_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def archive(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, kind, extra in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.mode = 0o755
            if kind == tarfile.REGTYPE:
                info.size = len(extra)
                tar.addfile(info, io.BytesIO(extra))
            else:
                info.linkname = extra or ""
                tar.addfile(info)
    return path


def test_an_archive_is_unpacked_once_by_its_content(tmp_path):
    made = archive(
        tmp_path / "a.tar",
        ("./etc", tarfile.DIRTYPE, None),
        ("./etc/mark", tarfile.REGTYPE, b"marked"),
        ("./link", tarfile.SYMTYPE, "/etc/mark"),
        ("./hard", tarfile.LNKTYPE, "./etc/mark"),
        ("./dev/null", tarfile.CHRTYPE, None),
    )
    root = unpack(made, tmp_path / "cache")
    assert (root / "etc" / "mark").read_bytes() == b"marked"
    assert str((root / "link").readlink()) == "/etc/mark"
    assert (root / "hard").stat().st_ino == (root / "etc" / "mark").stat().st_ino
    assert not (root / "dev" / "null").exists()
    copy = tmp_path / "b.tar"
    copy.write_bytes(made.read_bytes())
    assert unpack(copy, tmp_path / "cache") == root


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, b"x")],
        [("/abs", tarfile.REGTYPE, b"x")],
        [("a/../../out", tarfile.REGTYPE, b"x")],
        [("disk", tarfile.BLKTYPE, None)],
        [("pipe", tarfile.FIFOTYPE, None)],
        [("hard", tarfile.LNKTYPE, "../../etc/passwd")],
        [("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [("up", tarfile.SYMTYPE, "/etc"), ("hard", tarfile.LNKTYPE, "up/passwd")],
        [("up", tarfile.SYMTYPE, "/etc/passwd"), ("hard", tarfile.LNKTYPE, "up")],
        [("d/f", tarfile.REGTYPE, b"x"), ("d", tarfile.REGTYPE, b"x")],
    ],
)
def test_a_hostile_member_is_refused_and_nothing_is_kept(tmp_path, members):
    made = archive(tmp_path / "a.tar", *members)
    with pytest.raises(SandboxError):
        unpack(made, tmp_path / "cache")
    kept = [p for p in (tmp_path / "cache").iterdir() if not p.name.endswith(".lock")]
    assert kept == []
    assert not (tmp_path / "out").exists()


def test_a_member_behind_a_link_stays_inside(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    made = archive(
        tmp_path / "a.tar",
        ("d", tarfile.SYMTYPE, str(outside)),
        ("d/file", tarfile.REGTYPE, b"x"),
    )
    root = unpack(made, tmp_path / "cache")
    assert (root / "d" / "file").read_bytes() == b"x"
    assert list(outside.iterdir()) == []


NAMES = st.text(st.sampled_from("ab./"), min_size=1, max_size=8)
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(NAMES, KINDS, NAMES), max_size=6))
def test_no_archive_writes_outside_of_its_root(tmp_path, members):
    named = [(n, k, v.encode() if k == tarfile.REGTYPE else v) for n, k, v in members]
    base = tmp_path / "x" / "y"
    base.mkdir(parents=True, exist_ok=True)
    made = archive(base / "a.tar", *named)
    with suppress(SandboxError):
        unpack(made, base / "cache")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x"]
    assert sorted(p.name for p in base.iterdir()) == ["a.tar", "cache"]
    assert all(len(p.name.strip(".").split(".")[0]) == 64 for p in (base / "cache").iterdir())


def test_what_is_no_archive_is_an_error(tmp_path):
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"nonsense" * 1000)
    with pytest.raises(SandboxError, match=r"bad\.tar"):
        unpack(bad, tmp_path / "cache")


def resolve(name, search, cache):
    return asyncio.run(ImageFinder(ImageStore(cache)).find(name, search))


def test_a_name_is_looked_up_in_the_search_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    root = tmp_path / "images" / "world" / "rootfs"
    (root / "bin").mkdir(parents=True)
    for name in ("world", "world:2", "registry/team/world:2", "world@sha256:0"):
        found = resolve(name, [str(tmp_path), str(tmp_path / "images")], tmp_path / "cache")
        assert (found.path, found.complete) == (root, False)
    (root / "bin" / "sh").write_text("")
    assert resolve("world", [str(tmp_path / "images")], tmp_path).complete
    assert resolve(None, [], tmp_path).path is None
    for name in ("..", "other", "a/../..", ":x"):
        with pytest.raises(SandboxUnsupportedError):
            resolve(name, [str(tmp_path / "images")], tmp_path / "cache")


def test_a_layer_lies_over_the_hosts_programs(with_provider, tmp_path):
    layer = tmp_path / "images" / "world" / "rootfs"
    (layer / "opt" / "world").mkdir(parents=True)
    (layer / "opt" / "world" / "tool").write_text("#!/bin/sh\necho world\n")
    (layer / "opt" / "world" / "tool").chmod(0o755)
    (layer / "etc").mkdir()
    (layer / "etc" / "passwd").write_text("svc:x:77:77::/:/bin/sh\n")

    async def check(provider):
        spec = SandboxSpec(image="world:1", image_search=(str(tmp_path / "images"),))
        sandbox = await provider.create(spec)
        result = await sandbox.exec("/opt/world/tool; id -u svc; id -un; ls /opt")
        assert result.stdout == "world\n77\nagent\nworld\n"
        await sandbox.exec("rm -r /opt/world", user="root")
        assert (layer / "opt" / "world" / "tool").exists()
        assert not (await sandbox.exec("test -e /opt/world")).ok
        child = await provider.create(spec, image=await sandbox.snapshot())
        assert not (await child.exec("test -e /opt/world")).ok

    with_provider(check)


def test_a_name_never_finds_a_directory_near_the_runner(with_provider, tmp_path, monkeypatch):
    (tmp_path / "org" / "tool").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    async def check(provider):
        with pytest.raises(SandboxUnsupportedError, match="org/tool"):
            await provider.create(SandboxSpec(image="org/tool"))

    with_provider(check)


def test_a_complete_root_hides_the_host(with_provider, tmp_path):
    # A static program is all that a root needs; the box's own init is one.
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "sh").write_bytes(init_path().read_bytes())
    (root / "bin" / "sh").chmod(0o755)

    async def check(provider):
        sandbox = await provider.create(SandboxSpec(image=str(root)))
        # Not being PID 1 it refuses, which shows that it ran.
        assert (await sandbox.exec(["/bin/sh"])).exit_code == 2
        with pytest.raises(SandboxError):
            await sandbox.exec(["/usr/bin/env"])
        await sandbox.download("/etc/passwd", tmp_path / "passwd")
        assert "agent:x:10001" in (tmp_path / "passwd").read_text()

    with_provider(check)
    assert sorted(p.name for p in Path(root).iterdir()) == ["bin"]
