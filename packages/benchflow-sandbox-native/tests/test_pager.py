"""bf-pager, with a process that registers its own memory in CRIU's place."""

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchflow_sandbox_native import pager_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PAGE = mmap.PAGESIZE
BASE = 0x200000000000
PAGES = 600
"""More than the pager puts at once."""
HOLE = range(100, 110)
"""Pages that the image does not have: they were never written."""
TORN, LOST = 65, 70
BOX = Path(__file__).with_name("pager_box.py")
MAGIC = {"pagemap": (0x54564319, 0x56084025), "mm": (0x54564319, 0x57492820)}

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and "CI" not in os.environ, reason="events of a fork are told to root alone"
)


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(**fields):
    """Encode numbers and nested messages, by field number: `f1=…`."""
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bytes):
                out += varint(number << 3 | 2) + varint(len(each)) + each
            else:
                out += varint(number << 3) + varint(each)
    return out


def framed(kind, *messages):
    head = struct.pack("<II", *MAGIC[kind])
    return head + b"".join(struct.pack("<I", len(each)) + each for each in messages)


def entry(start, count, flags=6):
    return message(f1=BASE + start * PAGE, f2=0, f4=flags, f5=count)


def vma(start, end, advice=0):
    return message(f1=BASE + start * PAGE, f2=BASE + end * PAGE, f9=advice)


HEAD = message(f1=3)
ENTRIES = [entry(0, HOLE.start), entry(HOLE.stop, PAGES - HOLE.stop)]
EXPECTED = [0 if number in HOLE else number + 1 for number in range(PAGES)]


def pages(numbers):
    return b"".join((number + 1).to_bytes(8, "little") * (PAGE // 8) for number in numbers)


@pytest.fixture
def image(tmp_path):
    """An image of one process with `PAGES` pages, as CRIU writes it."""
    (tmp_path / "pagemap-1.img").write_bytes(framed("pagemap", HEAD, *ENTRIES))
    numbers = [number for number in range(PAGES) if number not in HOLE]
    (tmp_path / "pages-3.img").write_bytes(pages(numbers))
    (tmp_path / "mm-1.img").write_bytes(framed("mm", message(f1=0, f14=[vma(0, PAGES)])))
    return tmp_path


class Pager:
    """A pager and its guard, started as the launcher does."""

    def __init__(self, directory):
        self.path = str(directory / "socket")
        with contextlib.suppress(FileNotFoundError):
            (directory / "socket").unlink()
        listener = socket.socket(socket.AF_UNIX)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(self.path)
        listener.listen(1)
        self.told, tell = os.pipe()
        watched, self.lifeline = os.pipe()
        where = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        fds = (where, listener.fileno(), tell, watched)
        self.process = subprocess.Popen([pager_path(), *map(str, fds)], pass_fds=fds)
        listener.close()
        for fd in (tell, watched, where):
            os.close(fd)

    def guard(self):
        """Return the number of the guard, which is our child as well."""
        for _ in until("the guard is there"):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for pid in children:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "bf-guard":
                        return int(pid)
        return None

    def let_go(self):
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def said(self):
        """Return what it told until it has ended, and its guard has, too."""
        assert select.select([self.told], [], [], 60)[0]
        return os.read(self.told, 10)

    def close(self, guard):
        self.let_go()
        self.process.kill()
        self.process.wait()
        os.close(self.told)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(guard, signal.SIGKILL)
            os.waitpid(guard, 0)


class Box:
    def __init__(self, pager, count):
        command = [sys.executable, "-I", str(BOX), pager.path, str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, expression):
        self.process.stdin.write(f"{expression}\n".encode())
        self.process.stdin.flush()

    def ask(self, expression):
        self.tell(expression)
        return json.loads(self.process.stdout.readline())

    def await_fault(self):
        """Return when it sleeps outside of any system call: it waits for a page."""
        for _ in until("it waits for a page"):
            status = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2]
            call = Path(f"/proc/{self.process.pid}/syscall").read_text().split()[0]
            if status[0] == "S" and call == "-1":
                return

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def until(what):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        yield
        time.sleep(0.005)
    raise AssertionError(f"not within 60 s: {what}")


@pytest.fixture
def world(image):
    """A pager and a box that lacks all of its memory."""
    with contextlib.ExitStack() as stack:
        pager = Pager(image)
        guard = pager.guard()
        stack.callback(pager.close, guard)
        box = Box(pager, PAGES)
        stack.callback(box.close)
        yield pager, guard, box


def test_pages_come_when_they_are_asked_for_and_all_others_behind(world):
    pager, guard, box = world
    assert box.ask("read(599), read(0), read(105)") == [[600], [1], [0]]
    box.tell("finish()")
    assert pager.said() == b"F"
    assert pager.process.wait(60) == 0
    assert os.waitpid(guard, 0) == (guard, 0)
    assert json.loads(box.process.stdout.readline()) is None
    assert box.ask(f"read(0, {PAGES})") == EXPECTED


CHANGES = {
    "give_back(0, 50)": dict.fromkeys(range(50), 0),
    "give_back(105, 200)": dict.fromkeys(range(105, 305), 0),
    "replace(300, 40)": dict.fromkeys(range(300, 340), 0),
    "[write(7, 4711), give_back(8, 1)]": {7: 4711, 8: 0},
    "[map_pages(700, 60), move(200, 60, 700), map_pages(200, 60)]": dict.fromkeys(
        range(200, 260), 0
    ),
    "[move(90, 30, 400), map_pages(90, 30)]": {
        **dict.fromkeys(range(90, 120), 0),
        **{400 + step: EXPECTED[90 + step] for step in range(30)},
    },
    "[give_back(64, 3), move(60, 10, 20), map_pages(60, 10)]": {
        **dict.fromkeys(range(60, 70), 0),
        **{20 + step: 0 if step in {4, 5, 6} else 61 + step for step in range(10)},
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_process_does_to_missing_pages_is_done(world, change):
    pager, _, box = world
    box.ask(change)
    expected = [CHANGES[change].get(number, was) for number, was in enumerate(EXPECTED)]
    assert box.ask(f"forked(lambda: read(0, {PAGES}))") == expected
    box.ask("finish()")
    assert pager.said() == b"F"
    assert box.ask(f"read(0, {PAGES})") == expected
    if "700" in change:
        assert box.ask("read(700, 60)") == EXPECTED[200:260]


def test_a_forked_child_has_its_parents_memory_and_its_own_changes(world):
    pager, _, box = world
    action = f"[give_back(0, 9), write(10, 1), forked(lambda: read(0, {PAGES}))][2]"
    expected = [0] * 9 + [10, 1] + EXPECTED[11:]
    assert box.ask(f"forked(lambda: {action})") == expected
    box.ask("finish()")
    assert pager.said() == b"F"
    assert box.ask(f"read(0, {PAGES})") == EXPECTED


def test_what_a_fork_leaves_out_or_wipes_is_not_given_to_the_child(image):
    advices = [vma(0, 10, 1 << 18), vma(10, PAGES)]
    (image / "mm-1.img").write_bytes(framed("mm", message(f14=advices)))
    with contextlib.ExitStack() as stack:
        pager = Pager(image)
        stack.callback(pager.close, pager.guard())
        box = Box(pager, PAGES)
        stack.callback(box.close)
        box.ask("LIBC.madvise(at(0), size_of(10), 18)")
        assert box.ask("forked(lambda: read(0, 12))") == [0] * 10 + [11, 12]
        assert box.ask("read(0, 12)") == EXPECTED[:12]


def test_when_the_pager_is_killed_who_needs_a_page_waits_and_reads_no_zeros(world):
    pager, guard, box = world
    assert box.ask("read(0)") == [1]
    pager.process.kill()
    assert pager.process.wait(60) == -signal.SIGKILL
    box.tell("read(300)")
    box.await_fault()
    pager.let_go()  # a launcher that dies with it: the guard holds on while the box lives
    box.await_fault()
    assert not select.select([box.process.stdout], [], [], 0)[0]
    box.process.kill()
    assert os.waitpid(guard, 0) == (guard, 0)
    assert box.process.stdout.read() == b""
    assert pager.said() == b""


def test_when_a_fork_was_told_and_the_pager_is_killed_the_child_waits(world):
    pager, _, box = world
    box.tell("forked(lambda: [print(json.dumps('up'), flush=True), sys.stdin.read(1), read(0)])")
    assert json.loads(box.process.stdout.readline()) == "up"
    pager.process.kill()
    pager.process.wait()
    box.tell("")
    children = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children")
    (child,) = children.read_text().split()
    for _ in until("the child waits for a page"):
        if Path(f"/proc/{child}/syscall").read_text().split()[0] == "-1":
            break
    assert not select.select([box.process.stdout], [], [], 0)[0]
    os.kill(int(child), signal.SIGKILL)


def test_when_the_guard_is_killed_the_pager_goes_on(world):
    pager, guard, box = world
    os.kill(guard, signal.SIGKILL)
    os.waitpid(guard, 0)
    box.ask("finish()")
    assert pager.said() == b"F"
    assert box.ask(f"read(0, {PAGES})") == EXPECTED


def test_when_the_launcher_is_gone_the_pager_goes_on_while_the_box_lives(world):
    pager, guard, box = world
    assert box.ask("read(0)") == [1]
    pager.let_go()
    assert box.ask("read(300)") == [301]
    box.process.kill()
    assert pager.process.wait(60) == 0
    assert os.waitpid(guard, 0) == (guard, 0)
    assert pager.said() == b""


def test_a_pager_that_no_engine_calls_ends_with_its_launcher(image):
    pager = Pager(image)
    guard = pager.guard()
    pager.let_go()
    assert pager.process.wait(60) == 0
    pager.close(guard)


def test_pager_and_guard_are_confined(world):
    pager, guard, box = world
    assert box.ask("read(0)") == [1]
    for pid in (pager.process.pid, guard):
        status = Path(f"/proc/{pid}/status").read_text().split("\n")
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status


def loaded(directory):
    """Return the code that a pager ends with which has to load the image."""
    pager = Pager(directory)
    guard = pager.guard()
    silent = os.eventfd(0, os.EFD_NONBLOCK)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as engine:
        engine.connect(pager.path)
        # Not a box's first process: without one, the end of the connection is the end.
        engine.sendall(struct.pack("=i", 2))
        socket.send_fds(engine, [b"\0"], [silent])
    os.close(silent)
    code = pager.process.wait(60)
    pager.close(guard)
    return code


def put(image, pagemap=None, mm=None):
    (image / "pagemap-2.img").write_bytes(pagemap or framed("pagemap", HEAD, *ENTRIES))
    (image / "mm-2.img").write_bytes(mm or framed("mm", message(f14=[vma(0, PAGES)])))


def test_an_image_of_a_process_is_loaded(image):
    put(image)
    assert loaded(image) == 0


TORN_MAPS = {
    "no head": framed("pagemap"),
    "another magic": framed("pagemap", HEAD, *ENTRIES).replace(b"\x25\x40", b"\x25\x41"),
    "cut short": framed("pagemap", HEAD, *ENTRIES)[:-1],
    "more than there is": framed("pagemap", HEAD, *ENTRIES, entry(PAGES, 1)),
    "overlapping": framed("pagemap", HEAD, entry(0, 10), entry(9, 10)),
    "backwards": framed("pagemap", HEAD, entry(20, 10), entry(0, 10)),
    "not a page": framed("pagemap", HEAD, message(f1=BASE + 1, f4=6, f5=1)),
    "no pages": framed("pagemap", HEAD, entry(0, 0)),
    "a parent's": framed("pagemap", HEAD, entry(0, 1, 7)),
    "absent": framed("pagemap", HEAD, entry(0, 1, 2)),
    "around the end": framed("pagemap", HEAD, message(f1=2**64 - PAGE, f4=6, f5=2)),
    "past all bounds": framed("pagemap", HEAD, entry(0, 2**63)),
    "other pages": framed("pagemap", message(f1=2**40 + 3), *ENTRIES),
    "an endless number": framed("pagemap", HEAD, b"\x08" + b"\xff" * 12),
}


@pytest.mark.parametrize("why", TORN_MAPS)
def test_a_torn_page_map_is_refused(image, why):
    put(image, pagemap=TORN_MAPS[why])
    assert loaded(image) == TORN


def test_a_missing_image_and_one_behind_a_link_are_refused(image):
    put(image)
    (image / "pages-3.img").rename(image / "elsewhere")
    assert loaded(image) == TORN
    (image / "pages-3.img").symlink_to("elsewhere")
    assert loaded(image) == TORN


def test_pages_that_are_cut_off_later_end_the_pager_and_are_never_zeros(world, image):
    pager, _, box = world
    assert box.ask("read(0)") == [1]
    os.truncate(image / "pages-3.img", 300 * PAGE)
    box.tell("read(500)")
    assert pager.process.wait(60) == TORN
    box.await_fault()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bytes_of_an_image_make_the_pager_crash(image, data):
    good = {
        "pagemap": framed("pagemap", HEAD, *ENTRIES),
        "mm": framed("mm", message(f1=5, f14=[vma(0, 9, 1 << 10), vma(9, PAGES, 1 << 18)])),
    }
    kind = data.draw(st.sampled_from(sorted(good)))
    torn = bytearray(good[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(8, len(torn) - 1))
        torn[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=4))
    put(image, **{**good, kind: bytes(torn)})
    assert loaded(image) in {0, TORN}


def test_words_that_criu_never_says_end_the_pager(image):
    for words in (struct.pack("=i", 0), b"ab"):
        pager = Pager(image)
        guard = pager.guard()
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as engine:
            engine.connect(pager.path)
            engine.sendall(words)
            assert pager.process.wait(60) == LOST
        pager.close(guard)
