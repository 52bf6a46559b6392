"""Several values in one word."""

import pytest

from ccl.cli.value_lists import assignment_list, assignment_lists, named, names, numbers
from ccl.errors import UserError


def test_names() -> None:
    assert names("a, b,,a", "--strategies") == ["a", "b"]
    with pytest.raises(UserError, match="--strategies takes names joined by commas; got ' ,'"):
        names(" ,", "--strategies")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-5,8", [0, 1, 2, 3, 4, 5, 8]),
        ("7", [7]),
        ("3-3", [3]),
        (" 2 , 0-1", [2, 0, 1]),
        ("0-2,1-3", [0, 1, 2, 3]),
        ("007", [7]),
    ],
)
def test_numbers(text: str, expected: list[int]) -> None:
    assert numbers(text, "--seeds") == expected


@pytest.mark.parametrize("text", ["x", "", "1,", "-1", "5-0", "1-", "1.5", "0-5-8", "²", "0-999999999999", "1" * 5000])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        numbers(text, "--seeds")
    assert str(caught.value) == f"--seeds takes numbers and ranges such as 0-5 or 0,2,7; got {text!r}"


def test_assignment_lists() -> None:
    assert assignment_list("memory.per_cluster=5, 20,5") == ("memory.per_cluster", ["5", "20"])
    assert assignment_list("data.classes=[a,b],[c],3") == ("data.classes", ["[a,b]", "[c]", "3"])
    assert assignment_list("data.root=a=b,c") == ("data.root", ["a=b", "c"])
    assert assignment_lists(["epochs=1,2", "seed=3"]) == {"epochs": ["1", "2"], "seed": ["3"]}
    with pytest.raises(UserError, match="--vary names epochs twice"):
        assignment_lists(["epochs=1", "epochs=2"])


@pytest.mark.parametrize("text", ["epochs", "=3", "epochs=", "epochs=1,,2"])
def test_no_assignment_list(text: str) -> None:
    with pytest.raises(UserError, match="--vary takes a setting and its values"):
        assignment_list(text)


def test_all_is_all_that_are_known() -> None:
    assert named("all", "--strategies", {"a": 1, "b": 2}) == ["a", "b"]
    assert named("b, x", "--strategies", {"a": 1, "b": 2}) == ["b", "x"]
