"""The files of boxes: layers, their copies and digests, and live images."""
