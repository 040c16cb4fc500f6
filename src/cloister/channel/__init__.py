"""The sealed way between a user's machine and the processes that may read: HPKE, sealed streams, padding.

It knows keys and bytes, not what the bytes mean, nor which process holds which key.
"""
