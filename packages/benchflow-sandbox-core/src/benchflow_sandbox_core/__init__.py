"""What the sandboxes of one host have in common: pipes, commands, the relay, gates."""
