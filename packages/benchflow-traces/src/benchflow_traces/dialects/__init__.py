"""The dialects of spans and log records that this package reads.

A span that no dialect knows is kept as a plain span and counted. Its meaning is never guessed.
"""
