"""Opens each page of the dashboard in Firefox, by hand: `nox -s firefox`.

Firefox speaks Marionette itself. Selenium needs the program geckodriver, which Debian 12 does not
have, and Playwright needs a Firefox of its own. Prints what is wrong, and ends with 1.
"""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from dashboard_process import DashboardProcess, fill, production_records, run_demo, wait_until
from made_rollouts import write_rollout
from made_trees import random_tree
from site_crawl import crawl

PROGRAM = "/usr/bin/firefox-esr"
_MESSAGES = """
return Services.console.getMessageArray()
  .filter((each) => each instanceof Ci.nsIScriptError && each.sourceName.startsWith(arguments[0]))
  .map((each) => `${each.sourceName}:${each.lineNumber} ${each.errorMessage}`);
"""
"""Errors of scripts, of styles and of the policy."""


class FirefoxSession:
    """One Firefox, by the Marionette protocol: a length, a colon and JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._count = connection, 0
        self._file = connection.makefile("rb")
        self._read()
        self.send("WebDriver:NewSession")

    @classmethod
    @contextmanager
    def started(cls, profile: Path) -> Generator[Self]:
        """Start Firefox without a window, with an empty profile."""
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        flags = ("--headless", "--marionette", "--remote-allow-system-access", "--no-remote")
        command = [PROGRAM, *flags, "--profile", profile]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        connections: list[socket.socket] = []

        def is_connected() -> bool:
            try:
                connections.append(socket.create_connection(("127.0.0.1", port), timeout=120))
            except OSError:
                return False
            return True

        try:
            wait_until(is_connected, "Firefox")
            yield cls(connections[0])
        finally:
            process.kill()
            process.wait()

    def send(self, name: str, **parameters: object) -> Any:
        """Send a command, and return its result."""
        self._count += 1
        data = json.dumps([0, self._count, name, parameters]).encode()
        self._connection.sendall(f"{len(data)}:".encode() + data)
        _, _, error, result = self._read()
        if error:
            raise RuntimeError(f"{name}: {error['message']}")
        return result.get("value", result) if isinstance(result, dict) else result

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page."""
        return self.send("WebDriver:ExecuteScript", script=script, args=list(arguments))

    def errors(self, url: str) -> list[str]:
        """Return what the browser's console has of pages below `url`."""
        self.send("Marionette:SetContext", value="chrome")
        found: list[str] = self.run(_MESSAGES, url)
        self.send("Marionette:SetContext", value="content")
        return found

    def _read(self) -> Any:
        size = b""
        while (byte := self._file.read(1)) != b":":
            size += byte
        return json.loads(self._file.read(int(size)))


def check(server: DashboardProcess, profile: Path, paths: list[str]) -> list[str]:
    """Load each page, then follow a change of the list of runs. Return what is wrong."""
    with FirefoxSession.started(profile) as firefox:
        for path in paths:
            firefox.send("WebDriver:Navigate", url=server.url + path)
            assert firefox.run("return document.querySelector('main') !== null"), path
        firefox.send("WebDriver:Navigate", url=f"{server.url}/runs")
        state = "return document.querySelector('#live-state').dataset.state"
        wait_until(lambda: firefox.run(state) == "live", "a live page")
        shown = "return document.querySelectorAll('tr[data-row]').length"
        before = firefox.run(shown)
        write_rollout(random_tree(5), server.jobs / "fresh")
        wait_until(lambda: firefox.run(shown) > before, "the new row")
        found = firefox.errors(server.url)
        # Without this check, a console that reports nothing would look like a good page.
        firefox.run("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">')")
        wait_until(lambda: len(firefox.errors(server.url)) > len(found), "a report of the policy")
        return found


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        server = DashboardProcess(Path(home, "site"))
        fill(server.jobs)
        demo = run_demo(server.home)
        server.start()
        try:
            server.post_records(production_records("talk-1", fails=True))
            server.wait_for("/runs", lambda text: demo in text)
            pages = crawl(server.url, ("/", "/help", f"/r/{demo}?sel=n8&a=n7", "/r/large")).pages
            profile = Path(home, "profile")
            profile.mkdir()
            wrong = check(server, profile, pages)
        finally:
            server.kill()
    sys.stdout.write("".join(f"{each}\n" for each in wrong) + f"{len(pages)} pages\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
