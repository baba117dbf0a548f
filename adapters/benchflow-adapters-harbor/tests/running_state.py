"""What is not in files: processes, addresses of names, shared memory."""

from running_case import IMAGE, Case, files, passes
from running_containers import HEALTH

ONE = {"reward": 1.0}

SERVER = """import http.server, os, sys
count = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        global count
        count += self.command == "POST"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"count %d" % count)
    do_GET = do_POST = answer
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
FETCH = """import sys, time, urllib.request
for attempt in range(50):
    try:
        print(urllib.request.urlopen(sys.argv[1], sys.argv[2:] and b"x" or None).read().decode())
        break
    except OSError:
        time.sleep(0.1)
else:
    sys.exit("nobody answers")
"""
SERVED = f"{IMAGE}COPY . /served/\nRUN chmod +x /served/*\n"
ENTERED = f'{SERVED}ENTRYPOINT ["/served/entry.sh"]\n'
ENTRY = """#!/bin/sh
echo "127.0.0.1 shop.test" >> /etc/hosts
python3 /served/server.py &
exec "$@"
"""
SLOW_ENTRY = """#!/bin/sh
sleep 2
echo 41 > /srv/number
exec "$@"
"""
LATE_ENTRY = """#!/bin/sh
(sleep 2; touch /ready) &
exec "$@"
"""
HEALTHY = 'HEALTHCHECK --interval=500ms --timeout=5s --retries=30 CMD ["test", "-e", "/ready"]\n'
IDLING_ENTRY = """#!/bin/sh
sleep 43210 &
exec "$@"
"""
GET, POST = "python3 /served/fetch.py", "python3 /served/fetch.py {} post"
SHOP, LOCAL = "http://shop.test:8000/", "http://127.0.0.1:8000/"
START = "nohup python3 /served/server.py > /dev/null 2>&1 &\n"
RUNS = "grep -qsz 43210 /proc/[0-9]*/cmdline"
LISTEN = """import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("/run/shop.sock")
server.listen()
if os.fork():
    os._exit(0)
os.setsid()
while True:
    server.accept()[0].sendall(b"hello")
"""
ASK = """import socket
client = socket.socket(socket.AF_UNIX)
client.connect("/run/shop.sock")
assert client.recv(9) == b"hello"
"""
RESOLVE = """python3 -c 'import socket; print(socket.gethostbyname("shop.test"))'"""
SCORED = """#!/bin/sh
if {} > /dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def served(task: dict[str, str], entry: str = "") -> dict[str, str]:
    """Add the programs of the image to a task."""
    programs = {"server.py": SERVER, "fetch.py": FETCH, "listen.py": LISTEN, "ask.py": ASK}
    programs["entry.sh"] = entry
    return {**task, **{f"environment/{name}": text for name, text in programs.items()}}


STATE = {
    "entrypoint-serves": Case(
        served(
            files(
                f"{GET} {SHOP} > page\n",
                passes("grep -qx 'count 0' page", f"{GET} {SHOP}"),
                image=ENTERED,
            ),
            ENTRY,
        ),
        ONE,
    ),
    "entrypoint-serves-and-nothing-is-done": Case(
        served(files(test=SCORED.format("[ -s page ]"), image=ENTERED), ENTRY),
        {"reward": 0.0},
        agent="nop",
    ),
    "entrypoint-keeps-in-memory": Case(
        served(
            files(
                f"{POST.format(SHOP)}\n",
                passes(f"{GET} {SHOP} | grep -qx 'count 1'"),
                image=ENTERED,
            ),
            ENTRY,
        ),
        ONE,
    ),
    "entrypoint-is-slow": Case(
        served(
            files(
                "for i in $(seq 100); do [ -e number ] && break; sleep 0.1; done\ncp number copy\n",
                passes("grep -qx 41 copy"),
                image=ENTERED,
            ),
            SLOW_ENTRY,
        ),
        ONE,
    ),
    "entrypoint-is-slow-and-checked": Case(
        served(
            files(
                "cp /ready copy\n",
                passes("[ -e copy ]"),
                HEALTH,
                ENTERED,
            ),
            LATE_ENTRY,
        ),
        ONE,
    ),
    "image-is-healthy-after-a-while": Case(
        served(
            files("cp /ready copy\n", passes("[ -e copy ]"), image=f"{ENTERED}{HEALTHY}"),
            LATE_ENTRY,
        ),
        ONE,
    ),
    "entrypoints-process-is-ended": Case(
        served(
            files(
                "for p in /proc/[0-9]*; do\n"
                "  grep -qz '[4]3210' $p/cmdline && kill ${p#/proc/}\ndone\ntrue\n",
                passes(f"! {RUNS}"),
                image=ENTERED,
            ),
            IDLING_ENTRY,
        ),
        ONE,
    ),
    "entrypoints-process-is-not-ended": Case(
        served(
            files(test=SCORED.format(f"! {RUNS}"), image=ENTERED),
            IDLING_ENTRY,
        ),
        {"reward": 0.0},
        agent="nop",
    ),
    "solution-starts-a-server": Case(
        served(
            {
                **files(test=passes(f"{GET} {LOCAL}"), image=SERVED),
                "solution/solve.sh": f"#!/bin/sh\n{START}",
            }
        ),
        ONE,
        agent="oracle",
    ),
    "server-that-must-be-up-is-not": Case(
        served(files(test=SCORED.format(f"{GET} {LOCAL}"), image=SERVED)),
        {"reward": 0.0},
        agent="nop",
    ),
    "server-is-started-and-asked": Case(
        served(files(START, SCORED.format(f"{GET} {LOCAL}"), image=SERVED)), ONE
    ),
    "server-on-a-unix-socket": Case(
        served(
            files(
                "python3 /served/listen.py > /dev/null 2>&1\n",
                passes("python3 /served/ask.py"),
                image=SERVED,
            )
        ),
        ONE,
    ),
    "memory-and-temporary-files": Case(
        files(
            "for d in /run /tmp /dev/shm /var/tmp; do echo 41 > $d/number; done\n",
            passes(*(f"grep -qx 41 {d}/number" for d in ("/run", "/tmp", "/dev/shm", "/var/tmp"))),
        ),
        ONE,
    ),
    "names-are-changed": Case(
        files(
            'echo "127.0.0.9 shop.test" >> /etc/hosts\necho "options ndots:7" >> /etc/resolv.conf\n'
            "echo desk > /etc/hostname\n",
            passes(
                f"{RESOLVE} | grep -qx 127.0.0.9",
                "grep -qx 'options ndots:7' /etc/resolv.conf",
                "grep -qx desk /etc/hostname",
            ),
        ),
        ONE,
    ),
}
