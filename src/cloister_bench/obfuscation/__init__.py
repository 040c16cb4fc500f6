"""`cloister bench obfuscation`: substitutes of secrets (Figures 5–7), sampling times (Figure 13), guesses."""
