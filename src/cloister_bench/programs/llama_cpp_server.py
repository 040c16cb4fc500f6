"""llama.cpp's own server, in an environment with xllamacpp: `python llama_cpp_server.py FILE PORT THREADS SLOTS`."""

import signal
import sys

import xllamacpp

SLOT_TOKENS = 1024  # of one request's prompt and answer, at most

path, port, threads, slots = sys.argv[1], *map(int, sys.argv[2:])
print(xllamacpp.get_system_info(), flush=True)  # which instructions the wheel was built with
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = path, ["127.0.0.1"], port
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_parallel, params.n_ctx, params.cont_batching = slots, slots * SLOT_TOKENS, True
params.n_threads_http = slots
server = xllamacpp.Server(params)
signal.sigwait({signal.SIGINT, signal.SIGTERM})
