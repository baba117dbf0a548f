"""An mkdocs hook: the built site requests nothing from another host."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_REMOTE = (
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js",
    "https://unpkg.com/resize-observer-polyfill",
)
"""The theme's script falls back to these; the pages load Mermaid from `assets/mermaid`."""


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Remove the addresses of other hosts from the theme's script."""
    for script in Path(config.site_dir, "assets", "javascripts").glob("bundle.*.js"):
        text = script.read_text(encoding="utf-8")
        for address in _REMOTE:
            text = text.replace(address, "data:text/javascript,")
        script.write_text(text, encoding="utf-8")
