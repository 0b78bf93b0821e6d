"""The cases, one a file: `run` measures and returns its measurements."""
