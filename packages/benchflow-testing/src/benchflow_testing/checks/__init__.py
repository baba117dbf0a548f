"""The checks, one module for each part of a contract. Use them through `benchflow_testing`."""
