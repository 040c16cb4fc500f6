"""The sandbox of every vault and the service: layers of the Linux kernel that a process applies to itself
(docs/adr/0004-sandbox.md). A fork server leaves the host, empties its root and forks (`namespaces`); a child enters its
own namespaces, gives up its powers, starts its threads, and seals itself (`seal.seal`)."""
