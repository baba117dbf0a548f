"""Files in and out of a box, moved by the host without running anything inside."""
