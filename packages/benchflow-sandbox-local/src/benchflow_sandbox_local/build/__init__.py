"""Images from Dockerfiles, made in boxes of this provider."""
