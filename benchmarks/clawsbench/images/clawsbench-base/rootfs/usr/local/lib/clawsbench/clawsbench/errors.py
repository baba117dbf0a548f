"""What a service answers when it refuses a request."""


class ApiError(Exception):
    """A refusal with an HTTP status, a stable code and a sentence for the caller."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field

    def body(self) -> dict[str, object]:
        """Return the error as the JSON that goes over the wire."""
        error: dict[str, object] = {"code": self.code, "message": str(self)}
        if self.field is not None:
            error["field"] = self.field
        return {"error": error}


def invalid(field: str, message: str) -> ApiError:
    """Return the refusal of one field's value."""
    return ApiError(400, "invalid_value", f"{field}: {message}", field)


def not_found(kind: str, ident: str) -> ApiError:
    """Return the refusal of an id that names nothing."""
    return ApiError(404, "not_found", f"no {kind} {ident!r}")


class UsageError(Exception):
    """A command of the operator cannot be carried out; the message says why."""
