"""Files in and out of a container."""
