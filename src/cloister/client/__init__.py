"""What a user runs: verify a node, then speak to it through a sealed channel only. To be read in an hour.

It imports attest, channel, transparency and obfuscation, and no part of the server.
"""
