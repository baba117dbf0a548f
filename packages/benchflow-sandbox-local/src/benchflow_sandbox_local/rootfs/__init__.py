"""Find an image, and unpack it into the layers of a root file system."""
