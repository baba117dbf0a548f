"""Plain processes in a private directory, for those who accept no isolation at all."""
