"""Starting a new sandbox: namespaces, mounts, privileges and its first process."""
