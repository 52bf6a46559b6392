"""SVG of any figure: well formed, in the page's colour, stable, and names from outside taken as they are."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pytest
from matplotlib.backends import backend_svg
from matplotlib.figure import Figure

from ccl.report.arms import Arm, make_arms
from ccl.report.drawings import accuracy_matrix, accuracy_over_stream, forest, losses
from ccl.report.embedding_maps import draw
from ccl.report.svg_figures import short, to_svg
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]
HOSTILE = ("<script>alert(1)</script>", "\"]]>&'$\\frac{$", "a\x00\x1b\udcff--\nb")


def words_of(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def arms(record_of: Make) -> list[Arm]:
    return make_arms([record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE)])


def all_figures(arms: Sequence[Arm]) -> list[Figure]:
    drawn = [losses(arms[0].records[0]), forest(arms)]
    assert None not in drawn
    streams = [accuracy_matrix(arms[0]), accuracy_over_stream(arms, 3)]
    return [*streams, *(figure for figure in drawn if figure)]


def test_svg_is_inline_well_formed_transparent_and_in_the_pages_colour(arms: list[Arm]) -> None:
    for figure in all_figures(arms):
        svg = to_svg(figure)
        assert svg.startswith("<svg")
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "dc:date" not in svg
        background = svg[svg.index("<path") : svg.index("/>")]
        assert "fill: none" in background


def test_svg_is_the_same_each_time_and_ids_are_each_figures_own(arms: list[Arm]) -> None:
    first, second = ([to_svg(figure) for figure in all_figures(arms)] for _ in range(2))
    assert first == second
    again = to_svg(all_figures(arms)[0], "another place of the page")
    ids = [node.get("id") for svg in (*first, again) for node in ElementTree.fromstring(svg).iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    for svg in first:
        own = {node.get("id") for node in ElementTree.fromstring(svg).iter()}
        used = [node.get("{http://www.w3.org/1999/xlink}href") for node in ElementTree.fromstring(svg).iter()]
        assert all(link[1:] in own for link in used if link)


def test_hostile_names_are_text(record_of: Make) -> None:
    arms = make_arms([record_of(HOSTILE[0], FORGETS, names=HOSTILE), record_of("finetuning", FORGETS, names=HOSTILE)])
    for figure in all_figures(arms):
        svg = to_svg(figure)
        words = words_of(svg)  # parses: no control characters, no stray tags
        assert "<script" not in svg
        assert any("script" in word for word in words)
    assert "\"]]>&'$\\frac{$" in words_of(to_svg(accuracy_matrix(arms[0])))


def test_a_long_name_is_cut_in_its_middle() -> None:
    assert short("abcdefghij", 7) == "abc…hij"
    assert short("abcdefg", 7) == "abcdefg"
    assert short("a\tb\x00c") == "a b�c"


def test_drawing_changes_no_global_setting(arms: list[Arm]) -> None:
    before = dict(matplotlib.rcParams)
    to_svg(accuracy_matrix(arms[0]))
    to_svg(draw(np.eye(4)[:, :2], np.array([True, False, True, False])))
    assert dict(matplotlib.rcParams) == before


def test_a_clock_without_a_date_breaks_no_figure(arms: list[Arm], monkeypatch: pytest.MonkeyPatch) -> None:
    before = to_svg(accuracy_matrix(arms[0]))
    monkeypatch.setattr(backend_svg.datetime, "datetime", None)
    assert to_svg(accuracy_matrix(arms[0])) == before
