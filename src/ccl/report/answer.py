"""The answer that a page begins with: which strategy, how sure, at what price, and no more than the tests carry."""

import math
from collections.abc import Sequence
from itertools import combinations

from ccl.report import measures
from ccl.report.comparisons import comparisons, difference_of
from ccl.report.provenance import data_differences
from ccl.report.ranking import labels_used, relative, stored
from ccl.report.run_groups import Arm, Measure, of_equal_steps, records_of
from ccl.report.seed_statistics import NOT_DISTINGUISHABLE, Estimate, holm, verdict
from ccl.report.summary import has_paper_probe, num_tested, random_accuracy
from ccl.report.tables import interval

_MOST_NAMES = 4  # in one list of a sentence
_BETTER, _WORSE, _UNTESTED = "better", "worse", "not tested"


def answers(arms: Sequence[Arm]) -> list[str]:
    """A sentence for each number of steps; what was not measured, or can't be compared, is said instead."""
    probed = [arm for arm in arms if arm.estimate(measures.all_classes)]
    if not probed:
        is_measured = any(record.accuracy is not None for record in records_of(arms))
        return [
            "No run has reached the end of its stream yet."
            if is_measured
            else "No accuracy was measured in these runs."
        ]
    if different := data_differences(records_of(probed)):
        return [f"These runs can't be ranked: they differ in {' and '.join(different)}."]
    groups = of_equal_steps(probed)
    sentences = []
    for num_steps, group in groups.items():
        learned = [arm for arm in group if not arm.is_all_at_once] or group
        when = f"T = {num_steps}: " if len(groups) > 1 else ""
        sentences.append(when + (_ranked(learned, arms) if len(learned) > 1 else _alone(learned[0], arms)))
    return sentences


def context(arms: Sequence[Arm]) -> list[str]:
    """What the answer's numbers are to be read beside: the bounds, and what the test set's size leaves open."""
    levels = [f"{arm.name} {about.mean:.1f} %" for arm, about in _measured(arms) if arm.is_all_at_once]
    # Before training nothing is measured by the paper's probe.
    random = math.nan if has_paper_probe(arms) else random_accuracy(records_of(arms))[1]
    found = ["Accuracy on all classes is by the paper's own linear probe."] if has_paper_probe(arms) else []
    found += [f"All data at once: {_listed(levels)}."] if levels else []
    found += [f"Before training: {random:.1f} %."] if random == random else []
    errors = [about.mean for arm in arms if (about := arm.estimate(measures.error_by_test_set))]
    if errors and (sizes := num_tested(arms)):
        num = " or ".join(f"{size:,}" for size in sizes)
        found.append(
            f"Measured on {num} test images: another draw of them would change an accuracy by about "
            f"±{max(errors):.1f} points (one standard error), which no interval over seeds contains."
        )
    return found


def _ranked(arms: Sequence[Arm], every: Sequence[Arm]) -> str:
    """Of several arms with equal steps: the highest mean, what tests say of it, and its price."""
    found = sorted(_measured(arms), key=lambda pair: -pair[1].mean)
    if all(about.num == 1 for _, about in found):
        reached = [f"{arm.name} {about.mean:.1f} %{_in_brackets(_times(arm, every))}" for arm, about in found]
        return (
            f"One seed ranks nothing: {_listed(reached)} on all classes, each measured once; several seeds "
            "(ccl compare --seeds 0-4) can say which is better."
        )
    leader, about = found[0]
    met = _verdicts(leader, arms, every)
    what = "strategies" if len({arm.strategy for arm in arms}) == len(arms) else "variants"
    reached_most = f"{leader.name} has the highest mean of {len(arms)} {what}, {about.mean:.1f} % on all classes"
    answer = f"{reached_most}{_spread(about)}: {'; '.join(_how_sure(leader, met))}{_price(leader, every)}."
    fastest = min([leader, *met[NOT_DISTINGUISHABLE]], key=lambda arm: _mean(arm, measures.training_effort, math.inf))
    return answer if fastest is leader else f"{answer} Of these, {fastest.name} trained fastest."


def _alone(arm: Arm, every: Sequence[Arm]) -> str:
    ((_, about),) = _measured([arm])
    once = " by one seed, which says nothing of the spread" if about.num == 1 else ""
    reached = f"{arm.name} reaches {about.mean:.1f} % on all classes{_spread(about)}{once}"
    return f"{reached}; there is no other strategy to compare it with{_price(arm, every)}."


def _verdicts(leader: Arm, arms: Sequence[Arm], every: Sequence[Arm]) -> dict[str, list[Arm]]:
    """The other arms by what a paired test says of the leader against them.

    A test of the table of differences is taken from there, with its correction. The others are corrected for all pairs
    of arms: which one leads was seen in the same numbers that are tested.
    """
    pairs = [(_names(*pair), difference_of(*pair)) for pair in combinations(arms, 2)]
    known = [(names, difference.p_value) for names, difference in pairs if difference is not None]
    p_values = dict(zip([names for names, _ in known], holm([p_value for _, p_value in known]), strict=True))
    p_values |= {_names(one.arm, one.baseline): one.p_value for one in comparisons(every)}
    found: dict[str, list[Arm]] = {_BETTER: [], NOT_DISTINGUISHABLE: [], _WORSE: [], _UNTESTED: []}
    for arm in arms:
        difference = difference_of(leader, arm)
        p_value = p_values.get(_names(leader, arm), math.nan)
        if difference is None or math.isnan(p_value):
            found[_UNTESTED].append(arm)
        elif arm is not leader:
            found[verdict(difference, p_value)].append(arm)
    found[_UNTESTED].remove(leader)
    return found


def _how_sure(leader: Arm, met: dict[str, list[Arm]]) -> list[str]:
    """The verdicts as parts of a sentence."""
    better = []
    for arm in met[_BETTER]:
        about = difference_of(leader, arm)
        assert about is not None
        better.append(f"{arm.name} by {about.mean:.1f} points ({interval(about.low, about.high)})")
    parts = [f"better than {_listed(better)} by paired tests"] if better else []
    for kind, words in ((NOT_DISTINGUISHABLE, "from"), (_WORSE, "than")):
        parts += [f"{kind} {words} {_listed(names)} by paired tests"] if (names := [a.name for a in met[kind]]) else []
    if untested := [arm.name for arm in met[_UNTESTED]]:
        parts.append(f"not tested against {_listed(untested)}, for want of two equal seeds")
    return parts


def _price(arm: Arm, every: Sequence[Arm]) -> str:
    """What an arm costs, stores and takes from labels, as the end of a sentence; empty where nothing is known."""
    seconds = _mean(arm, measures.training_seconds, math.nan)
    shown = f"{seconds:.1f}" if seconds < 10 else f"{seconds:,.0f}"
    parts = [] if math.isnan(seconds) else [f"{shown} s of training{_in_brackets(_times(arm, every))}"]
    kilobytes = [_mean(arm, stored(what), math.nan) for what in ("images", "vectors", "networks")]
    if not any(map(math.isnan, kilobytes)):
        parts.append(f"{sum(kilobytes) / 1e3:,.1f} MB stored beside the encoder")
    parts += [f"the {labels} from labels"] if (labels := labels_used(arm.settings)) != "none" else []
    return f"; its price is {_listed(parts)}" if parts else ""


def _times(arm: Arm, every: Sequence[Arm]) -> str:
    """The training time in that of Finetuning; empty for Finetuning itself, and where it is not known."""
    ratio = None if arm.strategy == "finetuning" else relative(measures.training_effort, arm, every)
    return "" if ratio is None else f"{ratio:.2f}× Finetuning's training time"


def _measured(arms: Sequence[Arm]) -> list[tuple[Arm, Estimate]]:
    """Arms with a number on all classes, and that number."""
    return [(arm, about) for arm in arms if (about := arm.estimate(measures.all_classes))]


def _mean(arm: Arm, measure: Measure, otherwise: float) -> float:
    found = arm.estimate(measure)
    return otherwise if found is None else found.mean


def _spread(about: Estimate) -> str:
    bounds = interval(about.low, about.high)
    return "" if bounds is None else f" (95 % interval {bounds}, {about.num} seeds)"


def _names(one: Arm, other: Arm) -> frozenset[str]:
    return frozenset({one.name, other.name})


def _in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def _listed(names: Sequence[str]) -> str:
    """Names as a list of a sentence; of many the first few, and how many more."""
    shown = list(names[:_MOST_NAMES]) + ([f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else [])
    comma = "; " if any("," in name for name in shown) else ", "  # a name may hold commas itself
    return shown[0] if len(shown) == 1 else f"{comma.join(shown[:-1])} and {shown[-1]}"
