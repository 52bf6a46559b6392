"""Which strategies meet which objectives in the fast tests: every strategy and every objective at least one."""

import pytest

from ccl.catalogue import OBJECTIVES
from ccl.strategies import STRATEGIES, refusal

_STRATEGIES = ("simple_rehearsal", "ccl", "upper_bound")
_OBJECTIVES = ("moco_v2", "simclr", "insdisc")


def is_fast(strategy: str, objective: str) -> bool:
    """Whether a pair belongs in the fast tests."""
    is_of_paper = strategy in _STRATEGIES and objective in _OBJECTIVES
    return is_of_paper or objective == "moco_v2" or strategy in ("finetuning", "variance_distillation")


def is_quick(strategy: str, objective: str) -> bool:
    """Whether a pair belongs in the fast tests that learn it several times: one of each kind of part and objective."""
    of_parts = ("balanced_rehearsal", "multi_view_rehearsal", "lump", "osiris", "der", "weight_averaging")
    if strategy == "finetuning":
        return objective in ("byol", "barlow_twins", "mae")
    return (strategy == "ccl" and objective in _OBJECTIVES) or (strategy in of_parts and objective == "moco_v2")


PAIRS = [(s, o) for s in STRATEGIES for o in OBJECTIVES if not refusal(s, STRATEGIES[s], o)]
FAST_PAIRS = [pair for pair in PAIRS if is_fast(*pair)]
# For `parametrize(("strategy", "objective"), …)`: every pair that goes together, the quick ones unmarked.
ALL_PAIRS = [pytest.param(*pair, marks=() if is_quick(*pair) else pytest.mark.slow) for pair in PAIRS]
