"""Answers sealed requests: the OpenAI application in a process without network or files. Vaults get the prompts."""
