"""Files in and out of a box. The host moves them and runs nothing inside."""
