"""Where sealed requests are answered: the OpenAI application in a process without network, files or listeners. Sealed
prompts stay with the controller and go to vaults; this process refers to them by number."""
