"""Attention processes: each holds keys and values of a few users' prompts, no text, and answers a service for them."""
