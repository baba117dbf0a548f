"""Copy files into and out of a sandbox. No program inside takes part."""
