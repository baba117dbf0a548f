"""Running CRIU, and restoring what CRIU does not carry."""
