"""Rows of the benchmark: ratios measured in one run, so that a noisy machine counts on both sides."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured number; `at_least` says on which side of the goal it should be."""

    name: str
    value: float
    goal: float
    at_least: bool

    def __str__(self) -> str:
        holds = self.value >= self.goal if self.at_least else self.value <= self.goal
        sign = "≥" if self.at_least else "≤"
        return f"{self.name:<62} {self.value:9.3f}   {sign} {self.goal:<6} {'holds' if holds else 'falls short'}"


def fastest(*actions: Callable[[], object], rounds: int = 7) -> list[float]:
    """Best seconds of each action, taken in turns so that a slow moment of the machine hits all alike."""
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        for number, action in enumerate(actions):
            started = time.perf_counter()
            action()
            best[number] = min(best[number], time.perf_counter() - started)
    return best
