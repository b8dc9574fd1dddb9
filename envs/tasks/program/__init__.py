"""Episodes that are other programs: agents of any framework, which ask the models over HTTP."""
