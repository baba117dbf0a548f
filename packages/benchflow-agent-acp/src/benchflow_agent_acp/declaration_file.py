"""Read a declaration: check its size and nesting, parse the TOML, validate the model."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from benchflow_contracts import UsageError
from pydantic import ValidationError

from .declaration import AgentDecl, Failure, Proof, ProvenFidelity
from .probe_report import ProbeReport

_P = TypeVar("_P", bound=Proof)
_MAX_BYTES = 64 * 1024
_MAX_DOTS = 64
_MAX_NESTING = 16
_PROVEN = re.compile(r"^\[(?:un)?proven[.\]][^\n]*\n(?:(?!\[)[^\n]*\n)*", re.MULTILINE)
_TABLES = "write the entries as tables: [proven.state], version, date, command"
_HINT = "see the declarations in benchflow-agent-acp for the format"


def read_declaration(path: Path) -> AgentDecl:
    """Read an agent declaration from a TOML file.

    Raises:
        UsageError: The file is missing, too large, not TOML, or not a declaration; the
            message starts with `file:key`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the declaration: {error}", where=str(path)) from error
    return parse_declaration(data, where=str(path))


def parse_declaration(data: bytes, *, where: str) -> AgentDecl:
    """Parse a declaration. `where` is the name of its source in errors."""
    _check_shape(data, where)
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not valid TOML: {error}", where=where, hint=_HINT) from error
    try:
        return AgentDecl.model_validate(_arrays_to_tuples(table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(first["msg"], where=f"{where}:{key}", hint=_HINT) from error


def write_proven(path: Path, report: ProbeReport) -> None:
    """Write outcomes into the `[proven]` and `[unproven]` tables of a declaration file.

    Entries of the report replace earlier ones; entries that the report does not have stay.
    Nothing else in the file changes, and the file is replaced atomically.

    Raises:
        UsageError: The file declares another agent or version, or cannot be rewritten.
    """
    decl = read_declaration(path)
    if (decl.id, decl.version) != (report.agent, report.version):
        raise UsageError(
            f"the file does not declare {report.agent!r} {report.version}", where=str(path)
        )
    proven: dict[ProvenFidelity, Proof] = {**_not_tried(decl.proven, report), **report.proven()}
    unproven: dict[ProvenFidelity, Failure] = {
        **_not_tried(decl.unproven, report),
        **report.unproven(),
    }
    rest = _PROVEN.sub("", path.read_text().rstrip("\n") + "\n").rstrip("\n")
    text = f"{rest}\n{_render_proofs('proven', proven)}{_render_proofs('unproven', unproven)}"
    result = parse_declaration(text.encode(), where=str(path))
    if (result.proven, result.unproven) != (proven, unproven):
        raise UsageError("the `[proven]` tables cannot be rewritten", where=str(path), hint=_TABLES)
    scratch = path.with_name(f".{path.name}.new")
    try:
        scratch.write_text(text)
        scratch.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write the declaration: {error}", where=str(path)) from error


def _not_tried(
    proofs: Mapping[ProvenFidelity, _P], report: ProbeReport
) -> dict[ProvenFidelity, _P]:
    return {key: proof for key, proof in proofs.items() if key not in report.results}


def _render_proofs(table: str, proofs: Mapping[ProvenFidelity, Proof]) -> str:
    return "".join(
        f"\n[{table}.{key}]\n"
        # JSON strings are valid basic strings of TOML.
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in proof.model_dump().items())
        for key, proof in sorted(proofs.items())
    )


def _check_shape(data: bytes, where: str) -> None:
    """Refuse input that takes a TOML parser seconds: large files, dotted keys, deep nesting."""
    if len(data) > _MAX_BYTES:
        raise UsageError(f"larger than {_MAX_BYTES} bytes", where=where, hint=_HINT)
    text = data.decode("utf-8", "replace")
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise UsageError(f"a line with more than {_MAX_DOTS} dots", where=where, hint=_HINT)
    depth = 0
    for mark in re.finditer(r"[\[{]+|[\]}]", text):
        depth = depth + len(mark.group()) if mark.group()[0] in "[{" else depth - 1
        if depth > _MAX_NESTING:
            raise UsageError(f"nested deeper than {_MAX_NESTING}", where=where, hint=_HINT)
        depth = max(0, depth)


def _arrays_to_tuples(value: object) -> object:
    """Turn arrays into tuples, because a strict model refuses lists."""
    if isinstance(value, dict):
        return {
            key: _arrays_to_tuples(item) for key, item in cast("dict[str, object]", value).items()
        }
    if isinstance(value, list):
        return tuple(map(_arrays_to_tuples, cast("list[object]", value)))
    return value
