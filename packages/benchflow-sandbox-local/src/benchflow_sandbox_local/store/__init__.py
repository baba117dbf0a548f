"""Records of sandboxes on disk and in memory: labels, layers, snapshots and reaping."""
