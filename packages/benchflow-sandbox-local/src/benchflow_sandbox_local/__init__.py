"""A raw-Linux sandbox for BenchFlow: namespaces, overlay, seccomp and cgroups."""
