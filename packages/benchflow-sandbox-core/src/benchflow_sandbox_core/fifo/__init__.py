"""The transport of a gVisor or Docker sandbox: named pipes in one of its directories."""
