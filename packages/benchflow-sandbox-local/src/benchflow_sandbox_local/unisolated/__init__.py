"""Plain processes in a private directory, for operators who accept that nothing is isolated."""
