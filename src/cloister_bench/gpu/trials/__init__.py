"""Trials on a GPU machine: each ends with right or wrong. They need `src` on the path, torch with CUDA, cuda-core."""

MODULES = {  # by trial, in the order in which they tell most
    "check": "check",
    "queries": "queries",
    "steps": "times",
    "serve": "serve",
    "requests": "times",
    "obfuscated": "times",
    "weights": "weights",
    "churn": "verify",
    "million": "verify",
    "verified": "verify",
}
WITH_MODEL = ("serve", "churn", "verified", "million")
