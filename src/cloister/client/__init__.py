"""What a user runs, to be read in an hour: verify a node, then speak to it through a sealed channel only.

Of the rest of Cloister it imports messages, attest, channel and transparency, and nothing of the server.
"""
