"""Plain processes in a private directory, for operators who accept no isolation."""
