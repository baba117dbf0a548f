"""The relay: leads the doors of a sandbox to their upstreams."""
