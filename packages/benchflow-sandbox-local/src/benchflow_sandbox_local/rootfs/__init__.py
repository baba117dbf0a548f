"""From an image reference to the layers of a root file system."""
