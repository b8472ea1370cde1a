"""What a user wrote that cannot be run. In a module of its own, because the start is quick."""


class Unusable(Exception):
    """Raised when what the user wrote cannot be run; its text says what to do."""
