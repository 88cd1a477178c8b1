"""The tests that are run once more if they fail, each with the reason. All others fail the run when they fail once."""

RACY: dict[str, str] = {}
"""The reason by the beginning of a test's id, `tests/process/router/test_x.py::test_y`. `make flaky` finds them."""
