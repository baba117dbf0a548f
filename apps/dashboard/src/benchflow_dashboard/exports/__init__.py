"""Selections of runs as rows for trainers, and labelled rollouts as a dataset."""
