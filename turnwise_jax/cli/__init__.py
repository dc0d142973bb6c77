"""The ``turnwise`` command: each module parses one command's flags and calls the package."""
