"""The command line: ``llmrt`` and ``llmrt-serve``."""
