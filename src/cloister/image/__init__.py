"""A release as a machine: an image that is the same wherever it is built, and what a launch of it measures.

Computed from files alone, for verifiers who want to know which launch digest runs which release. Nothing here attests.
"""
