"""Every message that crosses a process boundary: typed, versioned, length-checked; never pickled.

This package knows the shape of messages and how to frame them. It does not know who sends them or why.
"""
