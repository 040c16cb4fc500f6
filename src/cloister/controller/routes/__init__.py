"""The ways a request takes through the processes, by level: which comes next, and which messages each may send when."""
