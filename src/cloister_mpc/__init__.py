"""Generation under multi-party computation (MPCache): prompt and weights are secret-shared between parties that do not
collude, and no hardware is trusted. Needs the extra `[mpc]`.

    client/        whoever holds the prompt: deals it to the parties, puts the answer's tokens together
    party/         one party: its process, the engine that computes on shares, the tunnel between engines, epochs
    provider/      whoever owns the weights: calibrates a model for fixed point, deals it to the parties
    model/         what is computed, in JAX: shape, weights, decoder, programs compiled from it; alike on plain numbers
    cache/         what is kept of the past and how it is read (MPCache §4, and the methods it is compared with)
    functions/     the non-linear functions, made cheap for shares
    config, certificates, connection, shares    what all of these have in common
    local_parties  all parties on one machine
"""
