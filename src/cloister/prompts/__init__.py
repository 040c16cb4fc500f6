"""Prompts as text and as tokens: what users write is checked, put into the model's chat template and tokenised; an
answer's tokens become text again.

Knows a model's folder, but neither weights nor tenants: gateway, vaults and the MPC client use the same code.
"""
