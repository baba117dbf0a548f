"""The launcher process and its children: they start, dump, restore and delete sandboxes.

This process runs on the host as the user of the runner. It imports the standard library alone.
"""
