"""A check that source code has the syntax of Python 3.6, the oldest Python that runs hooks and the connect program."""

import ast


def assert_syntax_of_python_3_6(source: str) -> None:
    try:
        ast.parse(source, feature_version=(3, 6))
    except SyntaxError as error:
        raise AssertionError(f"expected the syntax of Python 3.6: {error}") from error
