"""The directories that images are made from."""
