"""Which settings may change when a run resumes."""

from typing import Any

from ccl.settings.settings import Settings

# What may differ when a run resumes: where things lie, who watches, how often it is saved, the epochs yet to come.
MAY_CHANGE = frozenset(
    {"data.root", "data.download", "data.workers", "threads", "trackers", "epochs"}
    | {"checkpoint.minutes", "checkpoint.keep"}
)

# What a run fills in from the network's description where it was left open.
FILLED_IN = frozenset({"views.mean", "views.std", "views.size"})


def differences(before: Settings, now: Settings) -> list[str]:
    """One "name: before -> now" for each setting that differs and must not."""
    return _differences(before.model_dump(), now.model_dump(), "")


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str) -> list[str]:
    found = []
    for name, value in before.items():
        if isinstance(value, dict) and isinstance(now[name], dict) and value.keys() == now[name].keys():
            found += _differences(value, now[name], f"{prefix}{name}.")
        elif value != now[name] and not _may_differ(prefix + name, now[name]):
            found.append(f"{prefix}{name}: {value} -> {now[name]}")
    return found


def _may_differ(name: str, now: Any) -> bool:
    return name in MAY_CHANGE or (name in FILLED_IN and now is None)
