"""The trusted parent: starts every other process, carries messages between them, watches, cleans up.

It computes nothing, reads no prompt (they pass through as bytes), keeps no token, and is meant to be audited in an
hour: start at process.py.
"""
