"""The engine: scheduler, block pool, runner and sampler. It knows nothing of users, HTTP, text or privacy levels."""
