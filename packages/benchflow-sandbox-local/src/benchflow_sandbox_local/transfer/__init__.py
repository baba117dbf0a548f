"""Files in and out of a sandbox. The host moves them and runs nothing inside."""
