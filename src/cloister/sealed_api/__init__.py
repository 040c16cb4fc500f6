"""Where sealed requests are answered: the OpenAI application in a process without network, files or listeners.

It opens inner requests and seals answers. It names prompts to the controller and is never given one; users' machines
and the gateway are out of its reach.
"""
