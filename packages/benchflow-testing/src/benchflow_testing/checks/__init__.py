"""The lists of checks, by what they test. Use them through `benchflow_testing`."""
