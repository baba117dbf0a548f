"""The in-box init of the local sandbox."""
