"""Finding what a live fork would lose, while a sandbox is frozen."""
