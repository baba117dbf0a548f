"""The views that sum up jobs: comparisons, costs and rewards. The command line shows them too."""
