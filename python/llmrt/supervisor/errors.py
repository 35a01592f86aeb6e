"""What keeps a server from starting."""


class StartError(Exception):
    """The server cannot start; the message says why and what to change."""
