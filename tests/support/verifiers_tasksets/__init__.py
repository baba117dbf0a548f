"""Tasksets and environments that are written with the API of verifiers alone, as its users do.

A test puts the directory into the path of the other Python, which has verifiers.
"""
