"""Images from Dockerfiles, made by the engine."""
