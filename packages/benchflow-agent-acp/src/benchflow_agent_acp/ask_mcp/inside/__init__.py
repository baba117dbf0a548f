"""Runs inside the sandbox, with the standard library of its Python >= 3.11 only."""
