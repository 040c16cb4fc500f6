"""The level `mpc` (MPCache): prompt and weights are secret-shared between parties that do not collude; no hardware is
trusted. `level`, `offer` and `client_keeper` are the controller's side, `client` holds the prompt, `party` computes,
`provider` owns the weights; `model`, `cache` and `functions` are the computation in JAX, on shares or plain numbers."""
