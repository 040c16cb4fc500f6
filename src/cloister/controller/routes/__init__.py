"""The ways a request takes through the processes: one file for each, named after the level that takes it.

A route knows which process comes next, and which messages each of them may send at which stage.
"""
