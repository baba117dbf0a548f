"""Images from Dockerfiles, made in sandboxes of this provider."""
