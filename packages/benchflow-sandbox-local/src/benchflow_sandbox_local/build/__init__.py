"""Build images from Dockerfiles, in sandboxes of this provider."""
