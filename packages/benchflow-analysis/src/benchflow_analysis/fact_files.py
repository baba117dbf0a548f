"""The files of a job's facts: their columns, their whole lines, and parquet files beside them."""

import json
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import duckdb
from benchflow_contracts import StoreError

TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "trials": {
        "job": "VARCHAR",
        "index": "BIGINT",
        "slot": "VARCHAR",
        "variant": "VARCHAR",
        "task": "VARCHAR",
        "repeat": "BIGINT",
        "attempt": "BIGINT",
        "status": "VARCHAR",
        "reward": "DOUBLE",
        "scored": "BOOLEAN",
        "value": "JSON",
        "leaves": "BIGINT",
        "tampered": "BIGINT",
        "error_boundary": "VARCHAR",
        "error_type": "VARCHAR",
        "fingerprint": "VARCHAR",
        "tokens_in": "BIGINT",
        "tokens_out": "BIGINT",
        "cost_usd": "DOUBLE",
        "rollout_id": "VARCHAR",
        "epoch": "VARCHAR",
        "started_at": "DOUBLE",
        "finished_at": "DOUBLE",
        "seconds": "DOUBLE",
    },
    "metrics_long": {
        "job": "VARCHAR",
        "index": "BIGINT",
        "slot": "VARCHAR",
        "variant": "VARCHAR",
        "task": "VARCHAR",
        "repeat": "BIGINT",
        "name": "VARCHAR",
        "value": "DOUBLE",
    },
    "events": {
        "job": "VARCHAR",
        "index": "BIGINT",
        "slot": "VARCHAR",
        "attempt": "BIGINT",
        "seq": "BIGINT",
        "kind": "VARCHAR",
        "data": "JSON",
    },
    "variant_snapshots": {
        "job": "VARCHAR",
        "variant": "VARCHAR",
        "digest": "VARCHAR",
        "config": "JSON",
    },
    "run_manifest": {
        "job": "VARCHAR",
        "design": "VARCHAR",
        "baseline": "VARCHAR",
        "slots": "BIGINT",
        "created_at": "DOUBLE",
    },
}
"""The columns of each table. `run_manifest` is a file with one object, the others are JSONL."""

_EXPRESSIONS: Final[Mapping[str, str]] = {
    "scored": "coalesce(isfinite(reward), false)",
    "leaves": "coalesce(leaves, 0)",
    "tampered": "coalesce(tampered, 0)",
    **{
        name: f"CASE WHEN NOT isfinite(reward) THEN '{cause}' ELSE {name} END"
        for name, cause in (("error_boundary", "reward"), ("error_type", "NonFiniteReward"))
    },
}
"""Columns that are not read as they are. A reward that is not finite is not a score."""
LONGEST_LINE: Final = 128 << 20
"""The longest line that can be read, in bytes."""
USUAL_LINE: Final = 16 << 20
"""The longest line of the first try. DuckDB's buffers are twice as long."""

_STAMPS: Final = "parquet.json"
"""The file with the stamp of the JSONL file that each parquet file was made from."""


def file_name(table: str) -> str:
    """Return the name of the file of a table below `facts/`."""
    return "run_manifest.json" if table == "run_manifest" else f"{table}.jsonl"


def damaged_facts(error: duckdb.Error | str, names: Mapping[str, str] = {}) -> StoreError:
    """Return the error for facts that cannot be read. `names` has the file of each link."""
    message = str(error).splitlines()[0].strip()
    for link, source in names.items():
        message = message.replace(link, source)
    return StoreError(
        f"damaged facts: {message}", hint="write them again: `bench store rebuild JOB`"
    )


def stamp(table: str, source: Path) -> list[int]:
    """Return size and time of the file of a table, and a checksum of the columns."""
    status = source.stat()
    columns = repr(sorted(TABLES[table].items())).encode()
    return [status.st_size, status.st_mtime_ns, zlib.crc32(columns)]


def find_facts(facts: Path) -> dict[str, Path]:
    """Return the files of the tables below `facts/` that exist.

    Raises:
        StoreError: One of them is not a regular file. A link may lead to any file of this host.
    """
    files: dict[str, Path] = {}
    for table in TABLES:
        path = facts / file_name(table)
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
        if not stat.S_ISREG(mode):
            raise StoreError(
                f"{str(path)!r} is not a regular file",
                hint="write the facts again: `bench store rebuild JOB`",
            )
        files[table] = path
    return files


def write_parquet(job: Path) -> list[Path]:
    """Write the facts of a job as parquet files beside them, and return their paths.

    Later queries read these files as long as the facts do not change. The same facts give the
    same bytes.

    Raises:
        StoreError: The job does not have facts, the facts are damaged, or a file cannot be written.
    """
    facts = job / "facts"
    if not facts.is_dir():
        raise StoreError(
            f"{str(job)!r} does not have facts", hint="parquet needs the directory `facts/`"
        )
    written: list[Path] = []
    stamps: dict[str, list[int]] = {}
    try:
        (facts / _STAMPS).unlink(missing_ok=True)
        with TemporaryDirectory(prefix="bf-facts-") as scratch:
            for table, source in find_facts(facts).items():
                if table == "run_manifest":
                    continue
                before = stamp(table, source)
                path, torn = _write_table(table, job, source, Path(scratch))
                written.append(path)
                if not torn and stamp(table, source) == before:
                    stamps[table] = before
        (facts / _STAMPS).write_text(json.dumps(stamps, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {str(facts)!r}: {error.strerror}") from error
    return written


def _write_table(table: str, job: Path, source: Path, scratch: Path) -> tuple[Path, int]:
    """Write the parquet file of a table, and return it with the bytes that it leaves out."""
    link = scratch / source.name
    torn = expose(source, link)
    try:
        return _to_parquet(table, job, link), torn
    except StoreError:
        # The writer of a running job may have been in the middle of a line.
        link.unlink()
        torn = expose(source, link, copies=True)
        return _to_parquet(table, job, link), torn


def _to_parquet(table: str, job: Path, source: Path) -> Path:
    target = job / "facts" / f"{table}.parquet"
    partial = target.with_name(f".{target.name}")
    rows = select_rows(table, {job.resolve().name: source}, LONGEST_LINE)
    file = quoted(str(partial))
    partial.unlink(missing_ok=True)
    try:
        with duckdb.connect(":memory:") as connection:
            connection.execute(f"COPY ({rows}) TO {file} (FORMAT parquet, COMPRESSION zstd)")
    except duckdb.IOException as error:
        raise StoreError(f"cannot write {str(target)!r}: {error}") from error
    except duckdb.Error as error:
        raise damaged_facts(error, {str(source): str(job / "facts" / source.name)}) from error
    partial.replace(target)
    return target


def fresh_parquet(facts: Path, table: str) -> Path | None:
    """Return the parquet file of a table, `None` unless it has what the JSONL file has now."""
    parquet = facts / f"{table}.parquet"
    if not parquet.is_file() or parquet.is_symlink():
        return None
    is_fresh = _read_stamps(facts).get(table) == stamp(table, facts / file_name(table))
    return parquet if is_fresh else None


def _read_stamps(facts: Path) -> Mapping[str, object]:
    try:
        stamps = cast("object", json.loads((facts / _STAMPS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
    return cast("Mapping[str, object]", stamps) if isinstance(stamps, dict) else {}


def expose(source: Path, link: Path, *, copies: bool = False) -> int:
    """Link a JSONL file, or copy its whole lines; return the bytes of its unfinished last line."""
    with source.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        whole = _end_of_lines(file.fileno(), size)
        if whole == size and not copies:
            link.symlink_to(source.absolute())
            return 0
        file.seek(0)
        with link.open("wb+") as copy:
            while chunk := file.read(min(1 << 20, whole - file.tell())):
                copy.write(chunk)
            if copy.tell() < whole:
                # The file was cut meanwhile: it is being written again.
                copy.flush()
                copy.truncate(_end_of_lines(copy.fileno(), copy.tell()))
    return size - whole


def _end_of_lines(file: int, size: int) -> int:
    """Return the position after the last newline."""
    end = size
    while end > 0:
        start = max(0, end - (1 << 16))
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def select_rows(table: str, files: Mapping[str, Path], longest_line: int = USUAL_LINE) -> str:
    """Return the statement that reads a table from the file of each job; none gives no rows.

    A job has the name of its directory, whatever its file says: the directory may be a copy.
    """
    columns = {name: kind for name, kind in TABLES[table].items() if name != "job"}
    names = ", ".join(f'{_expression(name, kind)} AS "{name}"' for name, kind in columns.items())
    types = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in columns.items())
    form = "auto" if table == "run_manifest" else "newline_delimited"
    parts: list[str] = []
    for job, file in files.items():
        path = quoted(str(file))
        options = f"format={quoted(form)}, maximum_object_size={longest_line}"
        reader = f"read_json({path}, columns={{{types}}}, {options})"
        if file.suffix == ".parquet":
            reader = f"read_parquet({path})"
        parts.append(f"FROM {reader} SELECT {quoted(job)} AS job, {names}")
    if not parts:
        nothing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in TABLES[table].items())
        parts.append(f"SELECT {nothing} WHERE false")
    return " UNION ALL ".join(parts)


def _expression(name: str, kind: str) -> str:
    if kind == "DOUBLE":
        return f'if(isfinite("{name}"), "{name}", NULL)'
    return _EXPRESSIONS.get(name, f'"{name}"')


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
