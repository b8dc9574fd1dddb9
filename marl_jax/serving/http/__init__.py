"""HTTP server: application, limits, keys, streams and metrics."""
