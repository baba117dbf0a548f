import os
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_local.accounts import AccountBook
from benchflow_sandbox_local.launcher_process.layers.skeleton import AccountFiles
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def root(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nbad\nsvc:x:70:71::/srv:/bin/sh\nodd:x:-1:0::/:/bin/sh\n"
    )
    (tmp_path / "etc" / "group").write_text("svc:x:71:\nextra:x:90:root,svc\n")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd, tmp_path
    os.close(fd)


def test_a_user_is_found_by_name_and_number(root):
    book = AccountBook(root[0])
    found = book.look_up("svc")
    assert (found.uid, found.gid, found.groups, found.home) == (70, 71, (71, 90), "/srv")
    assert book.look_up("70") == found
    assert book.look_up("4000").uid == 4000
    for name in ("odd", "absent", "-1", "99999999999", "²"):
        with pytest.raises(SandboxError, match=name):
            book.look_up(name)


def test_a_number_of_thousands_of_digits_is_no_user(root):
    fd, path = root
    (path / "etc" / "passwd").write_text(
        f"huge:x:{'9' * 5000}:0::/:/bin/sh\nsvc:x:7:7::/:/bin/sh\n"
    )
    book = AccountBook(fd)
    assert book.look_up("svc").uid == 7
    for name in ("huge", "9" * 5000):
        with pytest.raises(SandboxError, match="no user"):
            book.look_up(name)


def test_a_change_of_the_files_is_seen(root):
    fd, path = root
    book = AccountBook(fd)
    assert book.look_up("svc").uid == 70
    (path / "etc" / "passwd").write_text("svc:x:5:5::/:/bin/sh\n")
    assert book.look_up("svc").uid == 5


def test_a_user_that_the_files_no_longer_name_is_missed_because_of_what_ran_inside(root):
    fd, path = root
    for name in ("passwd", "group"):
        (path / "etc" / name).unlink()
        (path / "etc" / name).mkdir()
    book = AccountBook(fd)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for missing in ("svc", "root:svc"):
        with pytest.raises(SandboxError) as failed:
            book.look_up(missing)
        assert failed.value.caused_by == "inside"
    assert book.look_up("root").uid == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_link_to_another_file_is_not_read(root):
    fd, path = root
    (path / "etc" / "passwd").unlink()
    (path / "etc" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(SandboxError):
        AccountBook(fd).look_up("daemon")


@given(st.text(max_size=200), st.text(max_size=100))
def test_any_files_of_an_image_can_be_completed(passwd, group):
    accounts = AccountFiles.parse(passwd, group)
    uid, gid, home = accounts.ensure("agent")
    assert accounts.ensure("agent") == (uid, gid, home)
    assert accounts.find("root") is not None
    again = AccountFiles.parse("\n".join(accounts.passwd), "\n".join(accounts.group))
    assert again.find("agent") == (uid, gid, home)
