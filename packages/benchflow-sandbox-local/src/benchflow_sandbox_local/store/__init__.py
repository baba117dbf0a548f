"""Records of boxes on disk and in memory: labels, layers, snapshots and reaping."""
