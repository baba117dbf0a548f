"""Artifacts by the SHA-256 of their bytes, in S3, GCS or Azure, by obstore (extra `objects`)."""

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from benchflow_contracts import StoreError, UsageError

from .evidence import check_digest

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class ObjectEvidenceStore:
    """An EvidenceStore at a URL, such as `s3://BUCKET/PREFIX`.

    The credentials come from the environment, as the SDK of the service reads them.
    """

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401 - of obstore
        """Open the store at `url`.

        Args:
            url: The place of the artifacts: `s3://`, `gs://`, `az://`, `file://` or `memory://`.
            options: Options of `obstore.store.from_url`, such as `endpoint`.

        Raises:
            UsageError: obstore is not installed, or does not understand the URL.
        """
        try:
            from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra
            from obstore.store import from_url  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError(
                "artifacts at a URL need obstore", hint="install benchflow-store[objects]"
            ) from error
        try:
            self._store: ObjectStore = from_url(url, **options)
        except BaseError as error:
            raise UsageError(f"cannot open the artifacts at {url!r}: {error}") from error
        self._url = url

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their digest. Repeatable.

        Raises:
            StoreError: The bytes cannot be stored.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415 - an extra

        digest = sha256(data).hexdigest()
        try:
            await self._store.put_async(_path(digest), data, mode="create")
        except AlreadyExistsError:
            pass  # the bytes of a digest never change
        except BaseError as error:
            raise StoreError(f"cannot store an artifact at {self._url!r}: {error}") from error
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises:
            StoreError: There are none, or they do not have this digest.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

        path = _path(digest)
        try:
            result = await self._store.get_async(path)
            data = bytes(await result.bytes_async())
        except (BaseError, FileNotFoundError) as error:
            raise StoreError(f"cannot read artifact {digest} at {self._url!r}: {error}") from error
        if sha256(data).hexdigest() != digest:
            raise StoreError(f"artifact {digest} is damaged: its bytes have another digest")
        return data

    async def has(self, digest: str) -> bool:
        """Return whether the store has the bytes of a digest.

        Raises:
            StoreError: The service does not answer.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

        try:
            await self._store.head_async(_path(digest))
        except FileNotFoundError:
            return False
        except BaseError as error:
            raise StoreError(f"cannot look for artifact {digest}: {error}") from error
        return True

    async def delete(self, digest: str) -> None:
        """Delete the bytes of a digest. Without effect if there are none.

        Raises:
            StoreError: The artifact cannot be deleted.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

        try:
            await self._store.delete_async(_path(digest))
        except FileNotFoundError:
            return
        except BaseError as error:
            raise StoreError(f"cannot delete artifact {digest}: {error}") from error


def _path(digest: str) -> str:
    check_digest(digest)
    return f"sha256/{digest[:2]}/{digest}"
