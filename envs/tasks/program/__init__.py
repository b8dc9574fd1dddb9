"""Episodes that run other programs, with agents of any framework that call models over HTTP."""
