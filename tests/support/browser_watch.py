"""Reports each thing that a page of the dashboard must not do."""

import re
from collections.abc import Iterable

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Request, WebError

_LOOPBACK = re.compile(r"(https?|wss?)://127\.0\.0\.1:\d+/|about:|blob:")
_REPORT_CSP = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`CSP report: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


class BrowserWatch:
    """Collects console errors, CSP reports, dialogs, new windows and requests that leave."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    def attach(self, context: BrowserContext) -> None:
        """Watch every page of a context."""
        context.add_init_script(_REPORT_CSP)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("dialog", self._on_dialog)

    def allow(self, pattern: str) -> None:
        """Accept problems that match, in this test: for example those of a server that is away."""
        self._allowed.append(re.compile(pattern))

    def unexpected(self) -> Iterable[str]:
        """Return the problems that no pattern allows."""
        return [
            problem
            for problem in self.problems
            if not any(pattern.search(problem) for pattern in self._allowed)
        ]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self.problems.append(f"console {message.type}: {message.text} {message.location}")

    def _on_error(self, error: WebError) -> None:
        self.problems.append(f"script error: {error.error}")

    def _on_request(self, request: Request) -> None:
        if not _LOOPBACK.match(request.url):
            self.problems.append(f"request that leaves: {request.url[:200]}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()
