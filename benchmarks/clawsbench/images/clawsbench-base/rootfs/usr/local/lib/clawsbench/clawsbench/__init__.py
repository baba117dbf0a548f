"""ClawsBench's office world: a mail and a calendar service over SQLite."""

__all__: list[str] = []
