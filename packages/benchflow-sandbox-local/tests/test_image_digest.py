"""The two digests of a live image: of its memory, and of all the rest."""

import os

from benchflow_sandbox_local.launcher_process.layers.digest import image_digest, memory_digest

MB = 1 << 20


def test_each_byte_of_a_large_memory_counts(tmp_path):
    pages = tmp_path / "pages-1.img"
    pages.write_bytes(b"")
    os.truncate(pages, 40 * MB)
    seen = {memory_digest(str(tmp_path))}
    assert {memory_digest(str(tmp_path))} == seen
    for offset in (0, 16 * MB - 1, 16 * MB, 33 * MB, 40 * MB - 1):
        with pages.open("r+b") as file:
            os.pwrite(file.fileno(), b"x", offset)
        seen.add(memory_digest(str(tmp_path)))
    os.truncate(pages, 32 * MB)
    seen.add(memory_digest(str(tmp_path)))
    pages.rename(tmp_path / "pages-2.img")
    seen.add(memory_digest(str(tmp_path)))
    assert len(seen) == 8


def test_all_but_the_memory_counts_for_the_image(tmp_path):
    core, pages = tmp_path / "core-1.img", tmp_path / "pages-1.img"
    core.write_bytes(b"core")
    pages.write_bytes(b"one")
    (tmp_path / "empty.img").write_bytes(b"")
    seen = {image_digest(str(tmp_path), "files")}
    pages.write_bytes(b"two")
    assert {image_digest(str(tmp_path), "files")} == seen
    seen.add(image_digest(str(tmp_path), "other files"))
    core.write_bytes(b"cord")
    seen.add(image_digest(str(tmp_path), "files"))
    pages.write_bytes(b"three")
    seen.add(image_digest(str(tmp_path), "files"))
    core.rename(tmp_path / "core-2.img")
    seen.add(image_digest(str(tmp_path), "files"))
    assert len(seen) == 5
