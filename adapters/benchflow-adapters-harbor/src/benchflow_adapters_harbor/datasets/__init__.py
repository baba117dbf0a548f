"""Datasets: directories, git repositories and registries of tasks."""
