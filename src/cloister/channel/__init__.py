"""The sealed way between a user's machine and the processes that may read: HPKE, sealed streams, padding.

It knows keys and bytes. What the bytes say, and who may hold which key, others decide.
"""
