"""Saved snapshots that somebody else made, or changed: none of them becomes root's work here."""

import json
import os

import pytest
from benchflow_contracts.bundle import Bundle
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_local.launcher_process.layers.digest import (
    image_digest,
    memory_digest,
    tree_digest,
)
from benchflow_sandbox_local.launcher_process.layers.live_images import copy_images

SNAPSHOT = "snapshot.json"


async def saved_by(provider, to, level="filesystem", **spec):
    sandbox = await provider.create(SandboxSpec(**spec))
    await sandbox.exec("echo mine > file", user="root")
    image = await sandbox.snapshot(level)
    await provider.save(image, to)
    await provider.discard(image)
    await sandbox.teardown()


def change(saved, edit):
    told = json.loads((saved / SNAPSHOT).read_text())
    edit(told)
    (saved / SNAPSHOT).write_text(json.dumps(told))


def with_right_digests(saved):
    """Make the digests of a saved snapshot those of what it holds now, as anybody can."""

    def edit(told):
        parent = told["key"]
        for place, layer in reversed(list(enumerate(told["layers"]))):
            parent = layer["digest"] = tree_digest(str(saved / str(place)), parent)
        if told["live"] is not None:
            parent = image_digest(str(saved / "processes"), parent)
            told["live"]["memory"] = memory_digest(str(saved / "processes"))
        told["image"]["digest"] = parent

    change(saved, edit)


def test_a_forged_device_node_with_right_digests_is_refused(with_provider, tmp_path):
    async def check(provider):
        await saved_by(provider, saved := tmp_path / "saved")
        os.mknod(saved / "0" / "disk", 0o60666, os.makedev(8, 0))
        with_right_digests(saved)
        with pytest.raises(SnapshotError, match="saved by another store") as refused:
            await provider.load(saved)
        assert "store" in refused.value.hint

    with_provider(check)


@pytest.mark.usefixtures("criu")
def test_a_live_image_is_not_brought_up_over_other_places_of_the_host(with_provider, tmp_path):
    for name in ("shown", "secrets"):
        (tmp_path / name).mkdir()
    (tmp_path / "secrets" / "key").write_text("host secret")
    mount = Bundle(source=str(tmp_path / "shown"), target="/shown", key="k")

    async def check(provider):
        await saved_by(provider, saved := tmp_path / "saved", "live", bundles=(mount,))
        change(saved, lambda told: told["live"]["mounts"][0].__setitem__(0, f"{tmp_path}/secrets"))
        with pytest.raises(SnapshotError, match="saved by another store"):
            await provider.load(saved)

    with_provider(check)


@pytest.mark.usefixtures("criu")
def test_a_live_image_that_was_edited_and_digested_anew_is_refused(with_provider, tmp_path):
    async def check(provider):
        await saved_by(provider, saved := tmp_path / "saved", "live")
        pages = max((saved / "processes").glob("pages-*.img"), key=lambda path: path.stat().st_size)
        data = bytearray(pages.read_bytes())
        data[0] ^= 1
        pages.write_bytes(data)
        with_right_digests(saved)
        with pytest.raises(SnapshotError, match="saved by another store"):
            await provider.load(saved)

    with_provider(check)


def test_what_another_store_saved_is_refused_and_its_secret_is_its_own(with_provider, tmp_path):
    async def check(provider):
        await saved_by(provider, saved := tmp_path / "saved")
        async with LocalProvider(store=tmp_path / "other") as other:
            with pytest.raises(SnapshotError, match="saved by another store"):
                await other.load(saved)
            await saved_by(other, theirs := tmp_path / "theirs")
            with pytest.raises(SnapshotError, match="saved by another store"):
                await provider.load(theirs)
            secret = tmp_path / "other" / "seal"
            assert secret.stat().st_mode & 0o777 == 0o600
            secret.chmod(0o644)
            with pytest.raises(SnapshotError, match="not readable by this user alone"):
                await other.load(theirs)
        async with LocalProvider(store=tmp_path / "store") as later:
            loaded = await later.load(saved)
            child = await later.create(SandboxSpec(), image=loaded)
            assert (await child.exec("cat file")).stdout == "mine\n"

    with_provider(check)


@pytest.mark.parametrize("kind", ["link", "pipe", "larger"])
def test_images_that_are_no_plain_files_or_too_large_are_not_taken_in(tmp_path, kind):
    source = tmp_path / "source"
    source.mkdir()
    place = source / "pages-1.img"
    if kind == "link":
        place.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.write_bytes(b"x" * 101)
    with pytest.raises(OSError, match=r"symbolic links|not a file|larger"):
        copy_images(str(source), str(tmp_path / "target"), 100)


def test_only_images_are_taken_in(tmp_path):
    source = tmp_path / "source"
    (source / "parent").mkdir(parents=True)
    (source / "parent" / "pages-1.img").write_bytes(b"theirs")
    (source / "pages-1.img").write_bytes(b"ours")
    (source / "engine.log").write_text("log")
    copy_images(str(source), str(tmp_path / "target"), 100)
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["pages-1.img"]


def test_two_trees_that_differ_never_have_one_digest(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for place in (one, other):
        (place / "1").mkdir(parents=True)
    # ChangeTracker after each other without their number, the parts of both are the same.
    os.setxattr(one / "1", "user.x", b"A")
    (one / "41471").mkdir()
    os.chown(one / "41471", 7, 8)
    (other / "user.x=41").symlink_to("8")
    os.chown(other / "user.x=41", (one / "41471").stat().st_mode, 7, follow_symlinks=False)
    assert tree_digest(str(one), "") != tree_digest(str(other), "")
