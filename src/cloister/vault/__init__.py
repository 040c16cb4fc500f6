"""The vault: one user's process. It reads the prompt, prefills it, holds its keys and values and answers the link.

It never speaks to its user or to the service but through the controller and the link, and knows no other vault.
"""
