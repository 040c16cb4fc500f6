"""The HTTP edge: the OpenAI-compatible API, API keys, limits, metrics and the chat page.

It hands prompts to a `Backend` and turns the token ids that come back into text. It reads prompts at the levels that
let the provider read them; at the others it passes bytes on. Models, batches and caches are elsewhere. It logs no user
content, and keeps none after a request has ended.
"""
