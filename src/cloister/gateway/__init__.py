"""The HTTP edge. It reads prompts at levels that permit it, else passes bytes on. It logs no user content."""
