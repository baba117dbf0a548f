"""24 texts that run code in a page that does not escape them, and a reader that finds out.

They leave text, quoted and unquoted attributes, comments, raw-text elements and SVG.
"""

from html.parser import HTMLParser

CANARY = "xss"
"""Every payload would run `alert('xss')` or load something called `xss`."""

PAYLOADS = (
    "<script>alert('xss')</script>",
    "</script><script>alert('xss')</script>",
    "<img src=x onerror=alert('xss')>",
    "\"><img src=x onerror=alert('xss')>",
    "'><img src=x onerror=alert('xss')>",
    "\" autofocus onfocus=\"alert('xss')",
    "' autofocus onfocus='alert(`xss`)",
    "x onmouseover=alert('xss') y=",
    "<svg onload=alert('xss')>",
    "<svg><script>alert('xss')</script></svg>",
    "</svg><script>alert('xss')</script>",
    "</title><script>alert('xss')</script>",
    "</textarea><script>alert('xss')</script>",
    "</style><script>alert('xss')</script>",
    "--><script>alert('xss')</script>",
    "]]><script>alert('xss')</script>",
    "<iframe srcdoc=\"<script>alert('xss')</script>\">",
    "javascript:alert('xss')",
    "<a href=\"javascript:alert('xss')\">x</a>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert('xss')>",
    '<div hx-get="/xss" hx-trigger=load>',
    "{{ ''.__class__.__mro__ }}{% raw %}xss",
    "\u0000<\u0000script>alert('xss')</script>\ud800",
    "\u202e<style>@import '//xss';</style>\r\n\r\nHTTP/1.1 200 OK",
)


LINES = frozenset({"tspan"})
"""The lines of a title in the tree: a long title has two."""


class MarkupReader(HTMLParser):
    """Collects the elements, the attributes and the text of a page, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        """Element, name, value."""
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    @property
    def elements(self) -> list[str]:
        """The tags without those whose number depends on the length of a text."""
        return [tag for tag in self.tags if tag not in LINES]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.append("!comment")

    def unknown_decl(self, data: str) -> None:
        self.tags.append("!declaration")


def structure(text: str) -> list[str]:
    """Return the elements and the names of attributes of a page, in order.

    Two pages that differ only in the texts of agents have the same structure.
    """
    reader = MarkupReader(text)
    names = (f"{tag} {name}" for tag, name, _ in reader.attributes if tag not in LINES)
    return [*reader.elements, *names]


def dangers(text: str) -> list[str]:
    """Return what would run code, or load something from elsewhere."""
    reader = MarkupReader(text)
    found = [name for _, name, _ in reader.attributes if name.startswith("on")]
    found += [name for _, name, _ in reader.attributes if name in {"style", "srcdoc"}]
    for tag, name, value in reader.attributes:
        is_local = value.startswith(("/", "?", "#")) and not value.startswith("//")
        if name in {"href", "src", "action", "xlink:href", "data", "hx-get"} and not is_local:
            found.append(f"{tag} {name}={value}")
    return found + [tag for tag in reader.tags if tag in {"iframe", "object", "embed", "base"}]
