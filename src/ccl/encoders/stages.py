"""The stages of any network, in the order in which images pass them: what is frozen first and learns slowest."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Stage:
    """Names below the network."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...]


def stages(network: nn.Module) -> list[Stage]:
    """The stem, then the network's blocks or groups of blocks, then what comes after them.

    A network's one list of blocks (a ViT's) gives a stage for each, several (a ResNet's) are one each. A norm belongs
    to the layer before it, and parameters outside of all modules to the first stage.
    """
    groups: list[list[str]] = []
    is_stem = True
    for name, is_block in _pieces(network, ""):
        is_first_block = is_block and is_stem
        is_norm = all(parameter.ndim < 2 for parameter in network.get_submodule(name).parameters())
        if groups and not is_first_block and (is_stem or is_norm):
            groups[-1].append(name)
        else:
            groups.append([name])
        is_stem = is_stem and not is_block
    owned = [
        [f"{name}.{key}" for name in group for key, _ in network.get_submodule(name).named_parameters()]
        for group in groups
    ]
    known = {key for keys in owned for key in keys}
    loose = [key for key, _ in network.named_parameters() if key not in known]
    if not groups:
        return [Stage((), tuple(loose))]
    owned[0] = loose + owned[0]
    return [Stage(tuple(group), tuple(keys)) for group, keys in zip(groups, owned, strict=True)]


def _pieces(module: nn.Module, prefix: str) -> list[tuple[str, bool]]:
    """Names of the parts in order, and whether each is a block."""
    children = [(name, child) for name, child in module.named_children() if _size(child)]
    containers = [(name, child) for name, child in children if isinstance(child, nn.Sequential | nn.ModuleList)]
    lists = [name for name, child in containers if sum(_size(part) > 0 for part in child.children()) > 1]
    if len(lists) > 1 or isinstance(module, nn.Sequential | nn.ModuleList):
        return [(prefix + name, not lists or name in lists) for name, _ in children]
    # Where most of a network is one part of it, its stages are that part's.
    whole = lists or [name for name, child in children if 2 * _size(child) > _size(module)]
    found: list[tuple[str, bool]] = []
    for name, child in children:
        if name in whole and list(child.children()):
            found += _pieces(child, f"{prefix}{name}.")
        else:
            found.append((prefix + name, not whole))
    return found


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
