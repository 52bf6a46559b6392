"""Folders to be damaged, every use of them in one process, and what must hold whatever is damaged."""

import errno
import hashlib
import io
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from breaking import quiet
from drops import TINY
from tiny import tiny_settings

from ccl import ContinualEncoder, UserError, load_dataset, read_run, run
from ccl.continual_encoder import judge, learn_drop
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.folder_page import is_whole_page
from ccl.continual_encoder.ledger import read_before
from ccl.continual_encoder.probe_classifiers import load_classifier
from ccl.continual_encoder.verifying import check_encoder
from ccl.runs.folder_lock import read_status
from ccl.runs.run_folder import is_finished
from ccl.runs.session import Session
from ccl.runs.verifying import check_run
from ccl.training import checkpoint
from ccl.training.checkpoint import MANIFEST, CheckpointStore

SMALL = 20_000  # bytes
DROPS, LAST = ("symbols", "textures", "digits"), "capitals"  # the last is under way
RUN = ("strategy=ccl", "checkpoint.minutes=1e-9")
LOCK = ".lock"
Read = Callable[[], object]


class BegunError(Exception):
    """Ends a use where its work would begin."""


def held(source: Any) -> "np.ndarray[Any, Any]":
    images: np.ndarray[Any, Any] = source.images.numpy()
    return images


def _images(name: str, seed: int) -> Any:
    images = held(load_dataset(name, images_per_class=3, resize=16).train)
    return images[seed : seed + 24].astype(np.uint8)


@contextmanager
def _broken_off(saves: int) -> Iterator[None]:
    """End what is learned inside after so many checkpoints."""
    original, left = Session.save, iter(range(saves - 1))

    def save(session: Session, *arguments: Any) -> None:
        original(session, *arguments)
        if next(left, None) is None:
            raise BegunError

    with patch.object(Session, "save", save), suppress(BegunError):
        yield


def make_encoder(folder: Path, seed: int = 0) -> Path:
    """An encoder folder of three versions, a candidate, a classifier and a drop under way."""
    encoder = ContinualEncoder.create(folder, **(TINY | {"seed": seed, "checkpoint": {"minutes": 1e-9}}))
    for name in DROPS:
        encoder.learn(_images(name, seed), name=name, progress=False)
    with patch.object(judge, "faults", lambda *_: ["planted"]):
        encoder.learn(_images("greek", seed), name="greek", progress=False)
    labelled = load_dataset("symbols", images_per_class=10, classes=2, resize=16).train
    encoder.probe(held(labelled), [label % 2 for label in range(len(labelled))])
    with _broken_off(saves=3):
        encoder.learn(_images(LAST, seed), name=LAST, progress=False)
    return folder


def make_run(folder: Path, seed: int = 0, saves: int | None = None) -> Path:
    """A run folder, finished or stopped after so many checkpoints."""
    if saves is None:
        run(tiny_settings(*RUN, f"seed={seed}"), folder, quiet())
    else:
        with _broken_off(saves):
            run(tiny_settings(*RUN, f"seed={seed}"), folder, quiet())
    return folder


MAKERS: dict[str, Callable[..., Path]] = {
    "encoder": make_encoder,
    "run": make_run,
    "stopped": partial(make_run, saves=6),
}


@dataclass
class Damaged:
    """A folder whose files a test damages one at a time, what its uses give while it is whole, and counts."""

    folder: Path
    seed: int = 0

    def __post_init__(self) -> None:
        self.is_encoder = EncoderFolder(self.folder).exists()
        self.whole, self.learnable = self.files(), _images(LAST, self.seed)
        self.names = [name for name in self.whole if name != LOCK and self.whole[name]]
        self.hashes = {
            f"steps/{event['version']:08d}/{name}": sha256
            for event in (EncoderFolder(self.folder).ledger().events if self.is_encoder else ())
            for name, sha256 in event.get("files", {}).items()
        }
        if not self.is_encoder:
            self.hashes = read_status(self.folder)["files"]
        assert not self.faults()
        self.outputs = self.uses()
        assert not [value for value in self.outputs.values() if isinstance(value, UserError)]
        assert self.files() == self.whole
        self.tried = self.found = self.harmless = 0

    def files(self) -> dict[str, bytes]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}

    def faults(self) -> list[str]:
        """What verify finds wrong."""
        check = check_encoder(EncoderFolder(self.folder)) if self.is_encoder else check_run(self.folder)
        try:
            return [f"{one.what}: {one.about}" for one in check if one.state in ("mendable", "lost")]
        except UserError as error:
            return [line_of(error)]

    def uses(self) -> dict[str, object]:
        """What each use gives; a UserError where it refuses, and any other exception goes on."""
        found: dict[str, object] = {}
        for name, use in self._encoder_uses() if self.is_encoder else self._run_uses():
            try:
                found[name] = use()
            except UserError as error:
                line_of(error)
                found[name] = error
        return found

    def _encoder_uses(self) -> Iterable[tuple[str, Read]]:
        encoder, two = ContinualEncoder(self.folder), self.learnable[:2]
        # What the drop under way was doing last is only shown.
        yield "status", lambda: repr({**encoder.status(), "learning": None})
        yield "encode", lambda: encoder.encode(two).tobytes()
        yield "candidate", lambda: encoder.encode(two, version=len(DROPS) + 1).tobytes()
        yield "predict", lambda: repr(encoder.predict(two))
        yield "learn", lambda: self._begin_learning(encoder)

    def _begin_learning(self, encoder: ContinualEncoder) -> str:
        """The start of `learn`, which sweeps, up to where it would go on with the drop."""

        def begin(drop: Any, *_: Any) -> None:
            given.append(repr((drop.begun, drop.ledger, drop.step, drop._settings_before())))
            raise BegunError

        given: list[str] = []
        with patch.object(learn_drop._Drop, "learn", begin), suppress(BegunError):
            encoder.learn(self.learnable, name=LAST, progress=False)
        return given[0]

    def _run_uses(self) -> Iterable[tuple[str, Read]]:
        settings = tiny_settings(*RUN, f"seed={self.seed}")

        def resumed() -> str:
            newest = CheckpointStore(self.folder / "checkpoints").newest()
            return f"{newest and newest.number}"

        def read() -> str:
            record = read_run(self.folder)
            accuracy = None if record.accuracy is None else record.accuracy.state_dict()
            return repr((record.settings, record.protocol, record.status, record.rows, accuracy))

        yield "read", read
        yield "is finished", lambda: is_finished(settings, self.folder)
        yield "resume", resumed

    def reader(self, name: str) -> Read | None:
        """The quickest that reads a file and raises UserError or gives False where it is damaged; None for no such."""
        folder, path, known = EncoderFolder(self.folder), self.folder / name, Path(name).parts
        if known[0] == "versions" or "checkpoints" in known:
            store, number = CheckpointStore(path.parents[1]), int(path.parent.name)
            entry = checkpoint._read_manifest(path.parent / MANIFEST)[0]["files"].get(path.name)
            return partial(store.describe, number) if entry is None else partial(checkpoint._read, path, entry)
        if name in self.hashes:
            return lambda: hashlib.sha256(path.read_bytes()).hexdigest() == self.hashes[name]
        if not self.is_encoder:
            return partial(read_run, self.folder) if name == "status.json" else None
        if path.suffix == ".safetensors":
            return partial(load_classifier, path)
        ledger = folder.ledger()
        about, identity = folder.versions.describe(ledger.current)[0], ledger.identity
        readers: dict[str, Read] = {
            "ledger.json": folder.ledger,
            "ledger.before.json": lambda: read_before(self.folder),
            "settings.yaml": lambda: not folder.other_settings(0, about),
            "report.html": lambda: is_whole_page(path),
            "learning/drop.json": lambda: learn_drop.read_begun(folder, identity),
        }
        return readers.get(name)

    def is_silent(self, read: Read | None) -> bool:
        try:
            return read is None or read() is not False
        except UserError as error:
            line_of(error)
            return False

    def check(self, what: str) -> None:
        """Damage is named by verify, or makes no difference to any use; and nothing is deleted or written."""
        before = self.files()
        faults, outputs = self.faults(), self.uses()
        assert self.files() == before, f"{what}: something was deleted or written"
        if faults:
            self.found += 1
            return
        different = [name for name, value in outputs.items() if value != self.outputs[name]]
        if any(isinstance(outputs[name], UserError) for name in different):
            self.found += 1
            return
        assert not different, f"{what}: verify says all is well, and there is a difference in {different}"
        self.harmless += 1

    def flip(self, name: str, bits: Iterable[int], checked: int = 5) -> None:
        """Flip each of these bits alone; so many drawn ones go through every use, found or not."""
        bits = list(bits)
        drawn = set(random.Random(name).sample(bits, min(checked, len(bits))))
        content, read = self.whole[name], self.reader(name)
        with (self.folder / name).open("r+b", buffering=0) as file:
            for bit in bits:
                at = bit // 8
                os.pwrite(file.fileno(), bytes([content[at] ^ (1 << bit % 8)]), at)
                self.tried += 1
                if self.is_silent(read) or bit in drawn:
                    self.check(f"bit {bit} of {name}")
                else:
                    self.found += 1
                os.pwrite(file.fileno(), content[at : at + 1], at)
        assert self.files() == self.whole

    @contextmanager
    def replaced(self, name: str, content: bytes | None) -> Iterator[None]:
        """Other content in a file for a while, None for no file."""
        path = self.folder / name
        path.unlink() if content is None else path.write_bytes(content)
        self.tried += 1
        yield
        path.write_bytes(self.whole[name])

    @property
    def kinds(self) -> list[str]:
        """A file of each kind: of numbered ones the first."""
        return list({re.sub("[0-9]", "0", name): name for name in reversed(self.names)}.values())

    @property
    def counts(self) -> str:
        return f"{self.tried:,} tried: {self.found:,} found, {self.harmless:,} harmless"


def line_of(error: UserError) -> str:
    """A message of one line, or of one for each of several mistakes."""
    assert len(str(error).splitlines()) == len(error.args), f"more than a line: {error}"
    return str(error)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """As without permission, which root always has."""

    def refusing(original: Callable[..., Any], file: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(file, int) and Path(os.fsdecode(file)) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return original(file, *arguments, **options)

    with (
        patch("builtins.open", partial(refusing, open)),
        patch("io.open", partial(refusing, io.open)),
        patch("os.open", partial(refusing, os.open)),
    ):
        yield


def copied(folder: Path, to: Path) -> Damaged:
    return Damaged(shutil.copytree(folder, to / folder.name))
