"""The way between the service and a vault: queries out, contributions to the attention back. Knows no prompts."""
