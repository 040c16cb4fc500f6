"""Measures and attacks Cloister; no node runs it. `cloister bench` finds it through an entry point."""
