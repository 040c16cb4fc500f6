"""Prompt obfuscation ("Confidential Prompting", §2.3 and §5): a prompt among λ made-up ones that a language model finds
about as likely. Sections named in this package are that paper's.

`tags` find the secrets, `gqs` samples their substitutes over a model it is given (`language_model`), `variants` makes
λ+1 texts, `index` hides which of them is real. Pure: no model, no network, no process. A user's machine and a vault
run the same code.
"""
