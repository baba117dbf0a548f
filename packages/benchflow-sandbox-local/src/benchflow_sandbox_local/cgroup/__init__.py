"""Control groups, v1 and v2: limits, freezing, killing, counting."""
