"""The sandbox every vault and the service live in: layers of the Linux kernel, applied by the process to itself.

A fork server leaves the host (`namespaces.leave_host`), empties its root (`namespaces.empty_root`) and forks children
(`namespaces.fresh_pid_namespace`, then `os.fork`). A child enters its own namespaces and gives up its powers
(`namespaces.enter_own`), starts its threads, and seals itself (`seal.seal`).

The package knows the kernel, but neither models, prompts nor messages. docs/adr/0004-sandbox.md gives the reasons.
"""
