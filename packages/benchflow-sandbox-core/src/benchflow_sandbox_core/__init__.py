"""Parts that the sandboxes of one host share: pipes, commands, the relay, gates."""
