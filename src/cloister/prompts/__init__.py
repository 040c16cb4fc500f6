"""Prompts from JSON through the model's chat template to tokens, and back to text. Knows no weights or tenants."""
