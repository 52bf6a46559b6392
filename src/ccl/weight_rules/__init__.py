"""Weight rules: changes of the weights between updates or steps; one file per rule."""

from ccl.part import WeightRule
from ccl.weight_rules.average import Average
from ccl.weight_rules.merge import Merge

__all__ = ["Average", "Merge", "WeightRule"]
