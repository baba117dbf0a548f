"""The program that builds kernel objects and checks them after a live fork.

It runs inside the sandbox, as root, with the standard library only and Python 3.11 or newer.
"""
