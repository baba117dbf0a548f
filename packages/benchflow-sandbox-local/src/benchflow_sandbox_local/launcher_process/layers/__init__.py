"""The files of sandboxes: layers, their copies and digests, and live images."""
