"""Where a container keeps its files, as the kernel tells it."""

import pytest
from benchflow_contracts import SandboxUnsupportedError
from benchflow_sandbox_docker.host_files import Overlay, read_mounts
from hypothesis import given
from hypothesis import strategies as st

PROC = "80 74 0:52 / /proc rw,nosuid - proc proc rw\n"
ROOT = "74 49 0:39 / / rw,relatime master:2 - overlay overlay rw,{}\n"


@pytest.mark.parametrize(
    "options",
    [
        "lowerdir=/s/2/fs:/s/1/fs,upperdir=/s/3/fs,workdir=/s/3/work,index=off",
        "lowerdir+=/s/2/fs,lowerdir+=/s/1/fs,upperdir=/s/3/fs,workdir=/s/3/work",
    ],
)
def test_the_root_names_its_directories(options):
    mounts = ROOT.format(options) + PROC
    assert read_mounts(mounts) == Overlay("/s/3/fs", ("/s/2/fs",), ("/s/1/fs",))


@pytest.mark.parametrize(
    "mounts",
    [
        "",
        PROC,
        "74 49 8:1 / / rw - ext4 /dev/sda1 rw\n",
        ROOT.format("lowerdir=/s/2:/s/1"),
        ROOT.format("lowerdir=2/fs:1/fs,upperdir=/s/3,workdir=/w"),
        ROOT.format(r"lowerdir=/s\0402:/s/1,upperdir=/s/3,workdir=/w"),
    ],
)
def test_mounts_without_all_directories_are_refused(mounts):
    with pytest.raises(SandboxUnsupportedError, match="this host cannot find the files"):
        read_mounts(mounts)


@given(st.text(alphabet="/ab \n,=:-+\\", max_size=80).map(ROOT.format))
def test_whatever_is_mounted_is_read_or_refused(mounts):
    try:
        found = read_mounts(mounts)
    except SandboxUnsupportedError:
        return
    assert all(path.startswith("/") for path in (found.upper, *found.engine_layers, *found.layers))
