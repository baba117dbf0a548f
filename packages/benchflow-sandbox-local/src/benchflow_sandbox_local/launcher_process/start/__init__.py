"""Starting a new box: namespaces, mounts, privileges and its first process."""
