"""Web pages: the report of a run, its charts, and the live page of a server."""
