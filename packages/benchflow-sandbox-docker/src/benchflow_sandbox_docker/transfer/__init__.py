"""Copy files into and out of a container."""
