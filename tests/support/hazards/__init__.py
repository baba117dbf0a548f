"""Every object of the kernel that a live fork could lose, built and checked for real."""
