"""How `/logs/verifier` is made, so that only the verifier's user can write to it."""

PROTECT = """set -eu
umask 022
protect() {
  [ -d /logs ] && [ ! -L /logs ] || rm -rf -- /logs
  [ -d /logs ] || mkdir -- /logs
  chown 0:0 / /logs
  chmod u=rwx,go=rx / /logs
}
make_empty() {
  if rm -rf -- "$1" 2>/dev/null; then mkdir -- "$1"; fi
  [ -d "$1" ] && [ ! -L "$1" ] && [ -z "$(ls -A -- "$1")" ] || exit 1
  owner_id=$2; [ "$2" != root ] || owner_id=0
  chown "$owner_id" "$1"
  chmod "$3" "$1"
}
"""
"""Two shell functions. `protect` lets only root add, delete or rename entries of `/` and `/logs`:
a user who can rename `/logs/verifier` can put another directory in its place. `make_empty
DIRECTORY OWNER MODE` makes a directory anew; of a mount point, which cannot be deleted, it deletes
what is in it. Root is named by number, because a small image has no `/etc/passwd`. Mode 700 also
disables the access control lists that files in it inherit: no other user can pass through the
directory."""
