"""Write a bundle: select, copy without secrets, render, and put it in place at once."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from benchflow_contracts import RolloutTree, StoreError, UsageError

from benchflow_dashboard.app import create_app, template_environment
from benchflow_dashboard.assets import assets
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.page_time import at_time
from benchflow_dashboard.rollouts import RolloutCache
from benchflow_dashboard.security.redaction import BundleRedactor, find_secrets
from benchflow_dashboard.settings import DashboardSettings
from benchflow_dashboard.tree.diff_page import choices_of

from .links import PageUrl, page_url, style_of_bundle, to_file
from .options import BundleOptions, BundleReport
from .render import RenderedPages, render_pages
from .staging import BundleSelection, select, stage

MANIFEST: Final = "bundle.json"
_DIFFS: Final = 20
"""The maximum number of differences of one rollout."""


def write_bundle(jobs_dir: Path, target: Path, options: BundleOptions) -> BundleReport:
    """Write the pages of the selected rollouts to the directory `target`.

    Equal records give equal bytes. The directory appears when it is complete. Secrets that this
    process knows, in the encodings of `SecretRedactor`, and credentials by their shape are masked.

    Raises:
        UsageError: The selection does not match, or `target` is in use.
        StoreError: The record cannot be read, or the bundle cannot be written.
    """
    _check_target(jobs_dir, target, options)
    selection = select(jobs_dir, options)
    directories = [jobs_dir / job / name for job, name in selection.rollouts]
    redactor = BundleRedactor(find_secrets(directories, options.redact_env))
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchflow-bundle-")))
        stage(jobs_dir, selection, work / "jobs", redactor)
        redacted = redactor.changes
        pages, moment = _render(jobs_dir, work, selection, options)
        files = dict(_files(pages, selection, moment, redactor))
        _put(files, target, options)
    return BundleReport(
        directory=target,
        rollouts=len(selection.rollouts),
        left_out=selection.left_out,
        pages=len(pages.html) + 1,
        omitted_pages=pages.omitted.total(),
        bytes=sum(map(len, files.values())),
        redacted=redacted,
    )


def _check_target(jobs_dir: Path, target: Path, options: BundleOptions) -> None:
    if target.is_symlink():
        raise UsageError(f"{str(target)!r} is a link", hint="name a new directory")
    if target.resolve().is_relative_to(jobs_dir.resolve()):
        raise UsageError(
            f"{str(target)!r} is inside the jobs directory", hint="name a directory outside of it"
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{str(target)!r} is not a directory", hint="name a new directory")
    if not any(target.iterdir()):
        return
    if not options.force:
        raise UsageError(
            f"{str(target)!r} is not empty",
            hint="name a new directory; --force replaces an earlier bundle",
        )
    if not (target / MANIFEST).is_file():
        raise UsageError(
            f"{str(target)!r} is not a bundle, so --force does not delete it",
            hint="name a new directory",
        )


def _render(
    jobs_dir: Path, work: Path, selection: BundleSelection, options: BundleOptions
) -> tuple[RenderedPages, float]:
    """Return the pages and the time of the data, which stands for now on the pages."""
    update_index(work / "index.db", work / "jobs")
    settings = DashboardSettings(jobs_dir=jobs_dir, index=work / "index.db")
    index = Index(work / "index.db", work / "jobs")
    # The index has been read to its end, and nobody changes the copies.
    index.watcher.is_behind = False
    try:
        with index.read() as session:
            moment = float(session.rows("SELECT MAX(finished) FROM runs", ())[0][0] or 0.0)
        app = create_app(settings, index=index)
        first = list(_first_pages(work / "jobs", selection))
        with at_time(moment):
            return asyncio.run(render_pages(app, first, options)), moment
    finally:
        index.close()


def _first_pages(staged: Path, selection: BundleSelection) -> Iterator[PageUrl]:
    links = ["/runs", "/jobs", *(f"/jobs/{quote(job, safe='')}" for job in selection.jobs)]
    rollouts = RolloutCache()
    for job, name in selection.rollouts:
        links.append(f"/r/{quote(name, safe='')}")
        try:
            loaded = rollouts.load(staged / job / name)
        except StoreError:
            continue
        if loaded.seq < 0:
            continue
        tree = loaded.stored.tree
        links += [f"/r/{quote(name, safe='')}/diff?{each}" for each in _differences(tree)]
    yield from (page for link in links if (page := page_url(link)) is not None)


def _differences(tree: RolloutTree) -> Iterator[str]:
    """Yield the comparisons of the best leaf, or of the root, with each other state."""
    states = choices_of(tree)
    scored = [leaf for leaf in tree.leaves if leaf.reward is not None and leaf.id in states]
    if not scored:
        return
    best = max(scored, key=lambda leaf: leaf.reward or 0.0).id
    for other in [name for name in states if name != best][:_DIFFS]:
        yield urlencode({"a": other, "b": best})


def _files(
    pages: RenderedPages, selection: BundleSelection, moment: float, redactor: BundleRedactor
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the bundle, redacted once more: records may join what was apart."""
    by_url = pages.files
    for name, asset in assets().items():
        if name.endswith((".css", ".svg")):
            yield f"static/{name}", style_of_bundle(name, asset.body)
        if name.startswith("icons/"):
            # Browsers resolve the URL in a variable by the style sheet that uses the variable.
            yield f"static/vendored/{name}", asset.body
    front = _front_page(pages, selection, moment)
    made = {"index.html": front}
    for url, html in pages.html.items():
        made[by_url[url]] = to_file(html, pages.urls[url], by_url)
    for file, html in sorted(made.items()):
        yield file, redactor.data(html.encode("utf-8", "backslashreplace"))
    manifest = {
        "schema_version": "1.0",
        "at": moment,
        "pages": {file: url for url, file in sorted(by_url.items())},
        "omitted": dict(sorted(pages.omitted.items())),
        "failed": dict(sorted(pages.failed.items())),
    }
    yield MANIFEST, redactor.json(json.dumps(manifest, indent=1).encode() + b"\n")


def _front_page(pages: RenderedPages, selection: BundleSelection, moment: float) -> str:
    view: Mapping[str, Any] = {
        "moment": moment,
        "jobs": [(job, f"/jobs/{quote(job, safe='')}") for job in selection.jobs],
        "rollouts": [
            (name, job, f"/r/{quote(name, safe='')}", pages.omitted[name])
            for job, name in selection.rollouts
        ],
        "differences": [url for url in pages.html if "/diff?" in url],
        "left_out": selection.left_out,
        "failed": pages.failed,
    }
    html = template_environment().get_template("bundle.html").render(view=view)
    return to_file(html, PageUrl("/", "", 0), {**pages.files, "/": "index.html"})


def _put(files: Mapping[str, bytes], target: Path, options: BundleOptions) -> None:
    """Write the files beside `target`, then give the directory its name."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for name, body in files.items():
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
            staging.chmod(0o755)
            if target.exists() and options.force and any(target.iterdir()):
                old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
                target.replace(old / "old")
                staging.replace(target)
                shutil.rmtree(old)
            else:
                # Only an empty directory is replaced: another file in it makes this fail.
                staging.replace(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise StoreError(
            f"cannot write the bundle {str(target)!r}: {os.strerror(error.errno or 0)}"
        ) from error
