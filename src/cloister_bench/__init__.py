"""Measures and attacks Cloister; no node runs it. `cloister bench` comes through an entry point
(`cloister.cli.__init__`)."""
