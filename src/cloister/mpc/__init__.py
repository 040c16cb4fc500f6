"""Generation under multi-party computation (MPCache): prompt and weights are secret-shared between parties that do not
collude, and no hardware is trusted. Needs the extra `[mpc]`.

    cache/      what is kept of the past and how it is read (MPCache §4, and the methods it is compared with)
    functions/  the non-linear functions, made cheap for shares
    programs    what parties compute, in JAX: the same functions run on plain numbers, which are their twins
    party       one process per party; `parties` is the side of whoever shares a prompt with them
"""
