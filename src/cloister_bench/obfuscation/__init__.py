"""`cloister bench obfuscation`: how many substitutes secrets have (Figures 5–7), how long sampling takes (Figure 13),
and how often adversaries guess which prompt is real.
"""
