"""ACP agents for BenchFlow: the client, the session and the agent declarations."""
