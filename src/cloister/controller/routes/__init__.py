"""The ways a request takes through the processes: one file for each, named after the level that takes it.

A route knows who must be asked in which order, and what each of them may say at which stage. It never reads a prompt.
"""
