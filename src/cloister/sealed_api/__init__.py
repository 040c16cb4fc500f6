"""Where sealed requests are answered: the OpenAI application in a process without network, files or listeners.

It opens inner requests and seals answers. Sealed prompts stay with the controller and go to vaults; this process refers
to them by number. Users' machines and the gateway are out of its reach.
"""
