"""The script verifier: `tests/test.sh`, in three isolations."""

from .verifier import ScriptVerifier

__all__ = ["ScriptVerifier"]
