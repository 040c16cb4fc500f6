"""The vault: one session's process. It reads prompts, prefills them, holds their keys and values and answers the link.

It has a socket to the controller and the link to the service, and no other connection.
"""
