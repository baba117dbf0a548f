"""The digest of a live image: every byte of it counts, by file and by place."""

import os

from benchflow_sandbox_local.box.digest import image_digest

MB = 1 << 20


def test_each_byte_of_a_large_image_counts(tmp_path):
    (tmp_path / "core-1.img").write_bytes(b"core")
    (tmp_path / "empty.img").write_bytes(b"")
    pages = tmp_path / "pages-1.img"
    pages.write_bytes(b"")
    os.truncate(pages, 40 * MB)
    seen = {image_digest(str(tmp_path), "files")}
    assert {image_digest(str(tmp_path), "files")} == seen
    seen.add(image_digest(str(tmp_path), "other files"))
    for offset in (0, 16 * MB - 1, 16 * MB, 33 * MB, 40 * MB - 1):
        with pages.open("r+b") as file:
            os.pwrite(file.fileno(), b"x", offset)
        seen.add(image_digest(str(tmp_path), "files"))
    os.truncate(pages, 32 * MB)
    seen.add(image_digest(str(tmp_path), "files"))
    pages.rename(tmp_path / "pages-2.img")
    seen.add(image_digest(str(tmp_path), "files"))
    assert len(seen) == 9
