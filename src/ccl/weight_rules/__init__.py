"""Weight rules: changes of the weights between updates or steps; one file per rule."""

from ccl.weight_rules.average import Average as Average
from ccl.weight_rules.merge import Merge as Merge
