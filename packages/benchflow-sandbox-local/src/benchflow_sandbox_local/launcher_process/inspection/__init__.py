"""Finding what a live fork would lose, while a box is frozen."""
