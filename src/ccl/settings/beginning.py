"""Runs that begin alike: where there is no past yet, most strategies do the same work on the same images."""

import hashlib
import json

from ccl.catalogue import COMPOSITIONS, RETENTION, WEIGHT_RULES, foreign_kind
from ccl.settings.resuming import MAY_CHANGE
from ccl.settings.settings import Settings
from ccl.strategies import STRATEGIES

# What says how the past is kept, and nothing else.
_OF_THE_PAST = {"strategy", "retention", "composition", "weight_rule", "weights", "memory"}
_OF_THE_PAST |= {*RETENTION, *COMPOSITIONS, *WEIGHT_RULES}


def has_common_beginning(settings: Settings) -> bool:
    """Whether all that a run has learned when its first step ends is the encoder and the state of the objective."""
    if settings.strategy not in STRATEGIES:  # of a run of another version, in a report: nobody knows
        return False
    method = settings.method
    parts = [RETENTION[name] for name in method.retention]
    parts += [WEIGHT_RULES[method.weight_rule]] if method.weight_rule else []
    # A start is a past already in the first step, and nothing here knows whether code of others has changed.
    is_ours = settings.encoder.weights is None and foreign_kind(settings.encoder.backbone) is None
    if settings.probe.network == "teacher":  # what is shared holds no teacher of the first step
        return False
    return is_ours and not method.all_at_once and not any(part.learns_in_first_step for part in parts)


def beginning(settings: Settings) -> str:
    """A name for what two runs must have in common to share their first step, beside data and machine."""
    own = settings.model_dump(mode="json", exclude={*_OF_THE_PAST, "trackers", "checkpoint"})
    for name in MAY_CHANGE - {"epochs", "threads"}:
        section, _, key = name.partition(".")
        if key and section in own:
            own[section].pop(key, None)
    own["encoder"].pop("statistics")  # estimated when the training of a step has ended
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]
