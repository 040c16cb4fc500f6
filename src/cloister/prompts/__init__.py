"""Prompts from JSON through the model's chat template to tokens, and answers' tokens to text. Knows no weights or
tenants."""
