"""What came from outside is shown and never obeyed: on a terminal, in a page, in a spreadsheet; credentials never."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import ccl
from ccl import UserError
from ccl.atomic_files import write_csv
from ccl.cli import main
from ccl.continual_encoder.images import name_of
from ccl.data import shards
from ccl.data.shard_index import Shard
from ccl.data.shards import ShardSource
from ccl.errors import masked, printable
from ccl.report import page_parts
from ccl.report.tables import Table, to_csv, to_markdown, to_rich
from ccl.runs import trackers
from ccl.runs.display import PlainDisplay, RichDisplay

# Clear the screen, write the clipboard, begin a line anew, turn the direction of writing, bytes that are not text.
HOSTILE = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\r\nevil\x9b31m\u2028\u202egpj\u2066\u200f\x7f\udcff"
SHOWN = r"\x1b[2J\x1b]52;c;ZXZpbA==\x07\r\nevil\x9b31m\u2028\u202egpj\u2066\u200f\x7f\udcff"  # letter by letter


@pytest.mark.parametrize(
    "text", ["plain", "Größe 5 × 3 ± 1 – “ok” …", "写真/日本.png", "a\u00a0b\u202fc", "👍🏽", "[red]"]
)
def test_readable_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_what_is_not_seen_is_shown() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("a\nb\tc\x1b", keeps="\n\t") == "a\nb\tc\\x1b"
    unseen = [chr(code) for code in range(0x110000) if chr(code) != " " and printable(chr(code)) != chr(code)]
    assert len(unseen) > 2048 + 32 + 33
    assert all(not char.isprintable() and printable(char).isascii() for char in unseen)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("can't read 's3://AKIA:c2Vj/c+V0@bucket/a.tar'", "can't read 's3://***@bucket/a.tar'"),
        ("http://127.0.0.1:9000/bucket/photo@2x.tar", "http://127.0.0.1:9000/bucket/photo@2x.tar"),
        ("can't read 's3://AKIA:c2VjcmV0@bucket/a.tar'", "can't read 's3://***@bucket/a.tar'"),
        ("https://token@host:8/a?x=1", "https://***@host:8/a?x=1"),
        ("gs://b/a.tar?token=ab%2Fc&n=2", "gs://b/a.tar?token=***&n=2"),
        (
            "https://h/a?X-Amz-Signature=12ab&X-Amz-Date=7&versionId=3",
            "https://h/a?X-Amz-Signature=***&X-Amz-Date=***&versionId=3",
        ),
        ("https://h/c?sv=2022&sig=a%2Bb%3D&se=1", "https://h/c?sv=2022&sig=***&se=1"),
        ("s3://b/a.tar?AWSAccessKeyId=AKIA&aws_secret_access_key=x", "s3://b/a.tar?AWSAccessKeyId=***&aws_secret_access_key=***"),
        ("https://h/#access_token=abc", "https://h/#access_token=***"),
        ("--set optimizer.learning_rate=0.1; see a@b", "--set optimizer.learning_rate=0.1; see a@b"),
        ("s3://bucket/photo@2x.tar", "s3://bucket/photo@2x.tar"),
    ],
)  # fmt: skip
def test_credentials_are_masked(address: str, shown: str) -> None:
    assert masked(address) == printable(address) == str(UserError(address)) == shown


def test_names_made_of_addresses_have_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = "s3://me:se/cret@bucket/a.tar?token=se%2Fcret"
    monkeypatch.setattr(shards, "_recent_index", _gone)
    source = ShardSource([Shard(address, 1, 1)], np.zeros(1, [("shard", "u1"), ("place", "u4"), ("size", "u4")]))
    assert source.name(0) == "s3://***@bucket/a.tar?token=***::0"
    assert name_of(f"shards:{address}") == name_of([f"shards:{address}"]) == "a.tar?token=***"
    monkeypatch.setattr(trackers, "_TRACKERS", {"mine": (lambda *given: seen.append(given), "json", "dumps")})
    seen: list[tuple[object, ...]] = []
    [tracker] = trackers.make_trackers(["mine"], tmp_path, {"dataset": [address], "seed": 1}, "", print)
    tracker._open()
    assert seen == [(tmp_path, {"dataset": ["s3://***@bucket/a.tar?token=***"], "seed": 1}, "")]


def _gone(shard: Shard) -> None:
    raise OSError


def test_error_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = HOSTILE.replace("/", "")
    monkeypatch.setattr("sys.argv", ["ccl", "report", str(tmp_path / name)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"ccl: there is no folder {tmp_path}/{SHOWN}\n"
    monkeypatch.setattr("sys.argv", ["ccl", "run", "demo", "--set", "epoch=1", "--set", "step=\x1b", "--out", "x"])
    with pytest.raises(SystemExit):
        main()
    assert len(capsys.readouterr().err.splitlines()) == 1  # not valid YAML


def test_several_mistakes_are_a_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ccl", "run", "demo", "--set", "epoch=1", "--set", "batch_siz=2", "--out", "x"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.count("\nccl: unknown setting") == 1


@pytest.mark.parametrize("display", [PlainDisplay, RichDisplay])
def test_displays(display: type[PlainDisplay | RichDisplay]) -> None:
    console = Console(file=io.StringIO(), force_terminal=display is RichDisplay, width=400, color_system=None)
    shown = display(console)
    shown.run_begins(f"[red]{HOSTILE}", [1], 1)
    shown.step_begins(0, 1, 0, True)
    shown.updated(0, 0, {"loss": 1.0}, 1, 0.5)
    shown.note(HOSTILE)
    shown.run_ends()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"· {SHOWN}\n" in text
    assert f"[red]{SHOWN}" in text
    assert [part for part in ("\x1b]", "\x07", "\u202e", "\x9b", "\x1b[2J", "\nevil") if part in text] == []


def test_tables_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(HOSTILE, ("Name", HOSTILE), ((HOSTILE, 1.0),), HOSTILE, warning=HOSTILE)
    console = Console(file=io.StringIO(), width=400, color_system=None)
    console.print(to_rich(table, 400))
    for text in (console.file.getvalue(), to_markdown(table)):  # type: ignore[attr-defined]
        assert not {"\x1b", "\x07", "\u202e", "\x9b", "\udcff"} & set(text)
    assert console.file.getvalue().count(SHOWN) == 5  # type: ignore[attr-defined]
    monkeypatch.setattr(page_parts, "_template", lambda name: "{{ text }} {{ look }}" if "x.html" in name else "\x1b")
    page = page_parts.render("ccl.report", "x.html.j2", text=f"{HOSTILE}<b>https://me:word@host/")
    shown = SHOWN.replace(r"\n", "\n")
    assert page == f"{shown}&lt;b&gt;https://***@host/ \x1b"  # what is our own stays as it is


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''-1"]
PLAIN = ["a=b.png", "'tis.png", "", "photo-1.jpg", " "]


def test_spreadsheets_compute_nothing(tmp_path: Path) -> None:
    texts = [*FORMULAS, *PLAIN]
    write_csv(tmp_path / "table.csv", ["name", "=x"], [[text, -1.5] for text in texts])
    ccl.write_features(tmp_path / "features.csv", torch.full((len(texts), 2), -1.0), texts, 1, {})
    for name in ("table", "features"):
        with (tmp_path / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        cells = [row[0] for row in rows]
        assert not [cell for cell in [*header, *cells] if cell[:1] in tuple("=+-@\t\r\n")]
        # One apostrophe less gives the text back, where there is one before such a sign.
        assert cells == [*(f"'{text}" for text in FORMULAS), *PLAIN]
        assert all(np.isfinite(float(row[1])) for row in rows)
        assert {float(row[-1]) for row in rows} <= {-1.0, -1.5}
    written = to_csv(Table("", ("Run", "=x"), (("=1", -1.5), ("-a", None)), ""))
    assert written == "Run,'=x\n'=1,-1.500\n'-a,\n"
