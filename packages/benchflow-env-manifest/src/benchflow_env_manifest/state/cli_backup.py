"""Copy live databases with the sqlite3 program, for images without Python."""

import hashlib
from collections.abc import Sequence

from benchflow_contracts import EnvironmentError_

from benchflow_env_manifest.sandbox_shell import SandboxShell

_SQLITE = "sqlite3 -init /dev/null -batch -bail -cmd '.timeout 10000'"

_CAPTURE = f"""
set -e; umask 077; dir=$1; shift
mkdir -p "${{dir%/*}}"; chmod 700 "${{dir%/*}}"; mkdir "$dir.partial"
n=0
for db in "$@"; do
  if [ -e "$db" ]; then {_SQLITE} "$db" ".backup $dir.partial/$n.db" >/dev/null; fi
  if [ -e "$db" ]; then [ -e "$dir.partial/$n.db" ]; fi
  n=$((n + 1))
done
mv "$dir.partial" "$dir"
"""

# An incomplete dump does not end with COMMIT.
_DIGEST = f"""
umask 077; dump=$1; shift
for db in "$@"; do
  [ -e "$db" ] || db=:memory:
  {_SQLITE} "$db" .dump > "$dump" || exit 1
  [ "$(tail -n 1 "$dump")" = 'COMMIT;' ] || exit 1
  sha256sum < "$dump" || exit 1
done
rm -f "$dump"
"""

_RESTORE = f"""
set -e; umask 077
if [ ! -e "$1" ] && [ ! -e "$2" ]; then exit 0; fi
[ -e "$2" ] || : > "$2"
{_SQLITE} "$1" ".restore $2" >/dev/null
"""

_ATTEMPTS = 5
_SEC = 300


class CliBackup:
    """The work of `PythonBackup` through `.backup` and `.restore`.

    Each database is captured at its own instant: the program cannot lock several at once.
    """

    def __init__(self, shell: SandboxShell) -> None:
        self._shell = shell

    async def capture(self, paths: Sequence[str], directory: str) -> str:
        """Copy into the new `directory`; return the digest of the contents."""
        await self._sh(_CAPTURE, directory, *paths, what=f"capture of {', '.join(paths)}")
        return _combined(paths, await self._captured_digests(paths, directory))

    async def restore(self, paths: Sequence[str], directory: str, digest: str, safety: str) -> None:
        """Restore `directory` if it still has `digest`; `safety` is an unused path."""
        exists = await self._shell.run(["test", "-d", directory])
        if not exists.ok:
            raise EnvironmentError_("restore failed: the snapshot is not in this sandbox")
        expected = await self._captured_digests(paths, directory)
        if _combined(paths, expected) != digest:
            raise EnvironmentError_("restore failed: the snapshot does not match its digest")
        await self.capture(paths, safety)
        before = await self._captured_digests(paths, safety)
        try:
            await self._restore_all(paths, directory, expected)
        except BaseException:
            await self._restore_all(paths, safety, before)
            raise

    async def _restore_all(
        self, paths: Sequence[str], directory: str, expected: Sequence[str]
    ) -> None:
        for index, path in enumerate(paths):
            source = f"{directory}/{index}.db"
            for _ in range(_ATTEMPTS):
                await self._sh(_RESTORE, path, source, what=f"restore of {path}")
                if await self._digests(f"{directory}.dump", [path]) == [expected[index]]:
                    break
            else:
                raise EnvironmentError_(
                    f"restore of {path!r} failed: a process wrote to it during every attempt",
                    hint="stop the agent before a restore, or add python3 to the image",
                )

    async def _captured_digests(self, paths: Sequence[str], directory: str) -> list[str]:
        files = [f"{directory}/{index}.db" for index in range(len(paths))]
        return await self._digests(f"{directory}.dump", files)

    async def _digests(self, scratch: str, files: Sequence[str]) -> list[str]:
        output = await self._sh(_DIGEST, scratch, *files, what="reading the databases")
        return [line.split()[0] for line in output.splitlines()]

    async def _sh(self, script: str, *arguments: str, what: str) -> str:
        return await self._shell.must(
            ["sh", "-c", script, "sh", *arguments], what=what, timeout=_SEC
        )


def _combined(paths: Sequence[str], digests: Sequence[str]) -> str:
    text = "\n".join(f"{digest} {path}" for path, digest in zip(paths, digests, strict=True))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
