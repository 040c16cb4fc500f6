"""The trusted parent: starts every other process, carries messages between them, watches, cleans up.

It computes nothing, reads no prompt (they pass through as bytes) and keeps no token. Start at process.py.
"""
