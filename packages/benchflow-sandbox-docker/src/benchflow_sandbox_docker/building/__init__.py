"""Build images from Dockerfiles with the engine."""
