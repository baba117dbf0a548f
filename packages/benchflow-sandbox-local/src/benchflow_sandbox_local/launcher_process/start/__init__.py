"""Start a new sandbox: its namespaces, mounts, privileges and first process."""
