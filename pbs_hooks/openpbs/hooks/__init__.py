"""What runs inside PBS itself: the standard library and the language of Python 3.6."""
