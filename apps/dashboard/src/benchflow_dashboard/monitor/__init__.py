"""Monitor mode: traces of production agents, scored by the rewards of an eval."""
