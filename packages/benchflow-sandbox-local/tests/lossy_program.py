# Bare names: it is run as one string.
# ruff: noqa: PTH101, PTH103, PTH108, PTH110, PTH123, SIM115
"""Runs in a box: holds one thing at a time that a live fork would lose, and lets go of it."""

import ctypes
import errno
import json
import os
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
GETDENTS = {"x86_64": 217, "aarch64": 61}[os.uname().machine]
PEERGROUPS = 59
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


def called(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def tcp():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    return listener, client, listener.accept()[0]


def fill(sock):
    sock.setblocking(False)
    try:
        while sock.send(b"x" * 65536):
            pass
    except BlockingIOError:
        return


def udp():
    sock = socket.socket(socket.AF_INET, UDP)
    sock.bind(("127.0.0.1", 5353))
    sock.sendto(b"unread", sock.getsockname())
    return [sock]


def empty_datagram():
    sock = socket.socket(socket.AF_INET6, UDP)
    sock.bind(("::1", 5353))
    sock.sendto(b"", sock.getsockname())
    return [sock]


def corked():
    sock = socket.socket(socket.AF_INET, UDP)
    sock.connect(("127.0.0.1", 9))
    sock.setsockopt(socket.IPPROTO_UDP, 1, 1)
    sock.send(b"half")
    return [sock]


def named_datagram():
    reader, writer = (socket.socket(socket.AF_UNIX, UDP) for _ in range(2))
    reader.bind("/tmp/reader")
    writer.bind("/tmp/writer")
    writer.sendto(b"unread", "/tmp/reader")
    return [reader, writer]


def passed_user():
    ends = socket.socketpair()
    ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ends[0].send(b"unread")
    return ends


def sent_file():
    ends = socket.socketpair()
    (sent,) = udp()
    socket.send_fds(ends[0], [b"x"], [sent.fileno()])
    sent.close()
    return ends


def inotify():
    os.makedirs("/tmp/watched", exist_ok=True)
    watch = called(libc.inotify_init1(os.O_NONBLOCK))
    called(libc.inotify_add_watch(watch, b"/tmp/watched", 0x100))
    open("/tmp/watched/new", "w").close()
    return [watch]


def directory():
    os.makedirs("/tmp/many", exist_ok=True)
    for number in range(300):
        open(f"/tmp/many/file-{number}", "w").close()
    fd = os.open("/tmp/many", os.O_RDONLY)
    called(libc.syscall(GETDENTS, fd, ctypes.create_string_buffer(2048), 2048))
    return [fd]


def timer():
    clock = called(libc.timerfd_create(1, os.O_NONBLOCK))
    often = ctypes.create_string_buffer(struct.pack("4q", 0, 1000, 0, 1000))
    called(libc.timerfd_settime(clock, 0, often, None))
    while "ticks: 0" in open(f"/proc/self/fdinfo/{clock}").read():
        time.sleep(0)
    return [clock]


def netlink():
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.bind((0, 0))
    sock.send(struct.pack("=IHHIIB", 17, 18, 0x301, 1, 0, 0))
    return [sock]


def urgent():
    listener, client, server = tcp()
    client.send(b"u", socket.MSG_OOB)
    return [listener, client, server]


def urgent_unix():
    ends = socket.socketpair()
    ends[0].send(b"u", socket.MSG_OOB)
    return ends


def full():
    listener, client, server = tcp()
    fill(client)
    return [listener, client, server]


def orphan():
    listener, client, server = tcp()
    fill(client)
    client.close()
    return [listener, server]


def half_closed():
    listener, client, server = tcp()
    client.shutdown(socket.SHUT_WR)
    return [listener, client, server]


def refused():
    sock = socket.socket()
    sock.setblocking(False)
    assert sock.connect_ex(("127.0.0.1", 1)) in {errno.EINPROGRESS, errno.ECONNREFUSED}
    while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 2:
        pass
    return [sock]


def reset():
    ends = socket.socketpair()
    ends[0].send(b"unread")
    ends[1].close()
    return [ends[0]]


def backlog():
    listener = socket.create_server(("127.0.0.1", 4321))
    return [listener, socket.create_connection(listener.getsockname())]


def unix_backlog():
    listener, client = (socket.socket(socket.AF_UNIX) for _ in range(2))
    listener.bind("/tmp/service")
    listener.listen()
    client.connect("/tmp/service")
    client.send(b"hello")
    return [listener, client]


def terminal():
    ends = os.openpty()
    os.write(ends[1], b"unread")
    return ends


def typed():
    ends = os.openpty()
    os.write(ends[0], b"unread\n")
    os.read(ends[0], 100)  # its echo
    return ends


def packets():
    return os.pipe2(os.O_DIRECT)


def left_packets():
    reader, writer = os.pipe2(os.O_DIRECT)
    os.write(writer, b"one")
    os.write(writer, b"two")
    os.close(writer)
    return [reader]


def queue():
    return [called(ctypes.CDLL("librt.so.1").mq_open(b"/queue", os.O_RDWR | os.O_CREAT, 0o600, 0))]


def unheld_queue():
    os.close(*queue())
    return []


def multipath():
    return [socket.socket(socket.AF_INET, TCP, 262)]


def peeking():
    ends = socket.socketpair()
    ends[0].setsockopt(socket.SOL_SOCKET, 42, 0)
    return ends


def two_users():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/tmp/shared")
    os.chmod("/tmp/shared", 0o777)
    listener.listen()
    client = socket.socket(socket.AF_UNIX)
    as_user(lambda: client.connect("/tmp/shared"))
    return [listener, client, listener.accept()[0]]


def as_user(act):
    """Do something as another user, and return what comes of it."""
    os.setegid(1234)
    os.seteuid(1234)
    try:
        return act()
    finally:
        os.seteuid(0)
        os.setegid(0)


def maker(sock):
    """Return the user, the group and how many further groups a socket names."""
    _, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        groups = len(sock.getsockopt(socket.SOL_SOCKET, PEERGROUPS, 256)) // 4
    except OSError:
        groups = 0
    return [uid, gid, groups]


def drop(held):
    for each in held:
        each.close() if isinstance(each, socket.socket) else os.close(each)
    for name in ("reader", "writer", "service", "shared"):
        if os.path.exists(f"/tmp/{name}"):
            os.unlink(f"/tmp/{name}")
    ctypes.CDLL("librt.so.1").mq_unlink(b"/queue")


def main():
    held = []
    print("ready", flush=True)
    for line in sys.stdin:
        drop(held)
        word = line.strip()
        held = list(globals()[word]()) if word != "nothing" else []
        print(json.dumps(word), flush=True)


if __name__ == "__main__":
    main()
