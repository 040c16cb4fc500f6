"""The sealed way between a user's machine and the processes that may read: HPKE, sealed streams, padding."""
