"""The launcher process and its children: they start, dump, restore and delete sandboxes.

They run on the host as the user of the runner, and import only the standard library.
"""
