"""Sessions: episodes played over HTTP, with their conversations and traces."""
