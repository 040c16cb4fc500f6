"""Generation under multi-party computation (MPCache): prompt and weights are secret-shared between parties that do not
collude, and no hardware is trusted.

    level, offer, client_keeper    the controller's side of the level `mpc`
    client/        holds the prompt: deals it to the parties, joins the answer's tokens
    party/         one party: its process, the engine that computes on shares, the tunnel between engines, epochs
    provider/      owns the weights: calibrates a model for fixed point, deals it to the parties
    model/         the computation in JAX, on shares or on plain numbers: shape, weights, decoder, compiled programs
    cache/         how the KV cache is kept and read (MPCache §4)
    functions/     the non-linear functions, made cheap for shares
    config, certificates, connection, messages, shares    used by all of these
    local_parties  all parties on one machine
"""
