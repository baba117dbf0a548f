"""Build contexts and Dockerfiles."""
