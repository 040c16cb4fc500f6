"""The vault: one session's process, with a socket to the controller, the link to the service, and no other
connection."""
