"""Prompt obfuscation ("Confidential Prompting", §2.3 and §5; sections named in this package are that paper's): a prompt
among λ made-up ones that a language model finds about as likely. Pure: no model, no network, no process."""
