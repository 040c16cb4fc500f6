"""The frame of every suite: how its parts are measured (`measurement`), and one JSON document (`documents`)."""
