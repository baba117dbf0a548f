"""Find state of a frozen sandbox that a live fork would lose."""
