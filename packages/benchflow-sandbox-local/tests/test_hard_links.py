"""A file with several names stays one file in children, whichever name it is changed by."""

import errno

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.launcher_process.layers import hard_links

CHANGE = "echo $0 >> one && cat two && stat -c %h:%i one two"


@pytest.mark.parametrize("level", ["filesystem", pytest.param("live", marks=pytest.mark.slow)])
def test_all_names_of_a_file_have_what_was_written_by_one_of_them(with_provider, level, request):
    if level == "live":
        request.getfixturevalue("criu")

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.exec("mkdir a && echo base > one && ln one two && ln one a/x")).ok
        written = "base\n"
        for depth in ("first", "second", "third"):
            image = await sandbox.snapshot(level)
            sandbox = await provider.create(SandboxSpec(), image=image)
            assert (await sandbox.exec("cat one two a/x")).stdout == written * 3
            told = (await sandbox.exec(["sh", "-c", CHANGE, depth])).stdout
            written += f"{depth}\n"
            text, one, two = told.rsplit("\n", 3)[:3]
            assert (f"{text}\n", one) == (written, two)
            assert one.startswith("3:")

    with_provider(check)


def test_a_note_that_a_broken_disk_holds_is_not_taken_for_absent(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "a").write_text("")
    hard_links.complete(str(tmp_path), str(tmp_path))
    monkeypatch.setattr(hard_links.os, "getxattr", broken)
    with pytest.raises(OSError, match="Input/output"):
        hard_links.complete(str(tmp_path), str(tmp_path))
