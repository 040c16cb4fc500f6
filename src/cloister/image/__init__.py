"""A release as a machine: an image that is the same wherever it is built, and what a launch measures."""
