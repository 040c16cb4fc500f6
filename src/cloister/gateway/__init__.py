"""The HTTP edge: the OpenAI-compatible API, API keys, limits, metrics and the chat page. It reads prompts at the levels
that let the provider read them; at the others it passes bytes on. It logs no user content."""
