"""The engine: scheduler, block pool, runner and sampler. It handles no users, HTTP, text or privacy levels."""
