"""`cloister bench obfuscation`: how many substitutes secrets have (Figures 5–7), sampling times (Figure 13),
guesses."""
