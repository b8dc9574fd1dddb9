"""HTML report of a run, web page of the server, and their charts."""
