"""How many examples a test generates."""

import os


def examples(number: int) -> int:
    """`ESPO_EXAMPLES=20 pytest FILE` makes twenty times as many."""
    return max(1, int(number * float(os.environ.get("ESPO_EXAMPLES", "1"))))
