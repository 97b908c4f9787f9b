"""Networks whose answers another one learns: trained first, or read from files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from charcnn.aliases import Function
from charcnn.config import Config
from charcnn.files import remove_own
from charcnn.host.terminal import printable
from charcnn.model import params
from charcnn.text.encodings import Encoding
from charcnn.training.recipe import Recipe
from charcnn.training.record import CHECKPOINT


class Teachers:
    """So many networks that are trained, or models that are read.

    Args:
        recipes: of those that are trained: each has a seed of its own.
        paths: where they are kept until the one that they teach is written.
        saved_as: what `charcnn.model.params.save` takes of each beside its weights: config, encoding, classes.
        given: models that are there, in place of all these.
        names: their files.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe] = (),
        paths: Sequence[str] = (),
        saved_as: Mapping[str, Any] | None = None,
        given: Sequence[params.Params] = (),
        names: Sequence[str] = (),
    ) -> None:
        self._recipes, self._paths, self._saved_as = recipes, paths, saved_as or {}
        self._given, self._names = given, names

    @property
    def settings(self) -> Any:
        """What decides their answers, as JSON values."""
        return [recipe.to_dict() for recipe in self._recipes] or [params.digest(model) for model in self._given]

    @property
    def described(self) -> Any:
        """What a model that learned from them says of them: JSON values."""
        if self._given:
            return {"files": [os.path.basename(name) for name in self._names], "digests": self.settings}
        return {"count": len(self._recipes), "epochs": self._recipes[0].epochs} if self._recipes else None

    @property
    def checkpoints(self) -> list[str]:
        """Where the training of each keeps its state."""
        return [f"{path}.checkpoint" for path in self._paths]

    def trained(self, fit: Function, settings: Any, restart: bool = False) -> Sequence[Mapping[str, np.ndarray]]:
        """The networks' weights.

        One that is there since before a kill is read, and not trained anew.

        Args:
            fit: trains a network of a recipe, and gives what has its `arrays`.
            settings: what must be equal for one that is there to be of use.
            restart: train all anew.
        """
        if self._given:
            return self._given
        found: list[Mapping[str, np.ndarray]] = []
        for number, (recipe, path, checkpoint) in enumerate(
            zip(self._recipes, self._paths, self.checkpoints, strict=True), 1
        ):
            name = f"teacher {number}/{len(self._paths)}: "
            model = None if restart or not os.path.exists(path) else params.load(path)
            if model is not None and model.metadata.get("teacher_of") == settings:
                print(f"{name}read from {printable(path)}", flush=True)
            else:
                arrays = fit(recipe, checkpoint, name=name).arrays
                params.save(path, arrays, **self._saved_as, dtype="float16", teacher_of=settings)
                model = params.load(path)  # so that a training that goes on has the same
            remove_own(checkpoint, CHECKPOINT)
            found.append(model)
        return found

    def remove(self) -> None:
        """Remove the files of those that were trained."""
        for path in self._paths:
            if os.path.exists(path):
                os.remove(path)


def files_of(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The models that --teachers names, and the files of those that it asks to train."""
    said: str = options.teachers
    if not said.isdecimal():
        return [name.strip() for name in said.split(",")], []
    stem = options.out.removesuffix(".safetensors")
    return [], [f"{stem}-teacher-{number}.safetensors" for number in range(1, int(said) + 1)]


def parse(
    options: argparse.Namespace, recipe: Recipe, config: Config, encoding: Encoding, classes: tuple[str, ...]
) -> Teachers:
    """The teachers that --teachers asks for: a number of networks to train, or models with commas between them.

    Raises:
        ValueError: it is neither, or a model has other sizes, classes or another encoding; names it.
        OSError: a model cannot be read.
    """
    names, paths = files_of(options)
    if not names:
        epochs = recipe.epochs if options.teacher_epochs is None else options.teacher_epochs
        numbers = range(1, len(paths) + 1)
        recipes = [replace(recipe, epochs=epochs, seed=recipe.seed + number, sparse="") for number in numbers]
        for path in paths:
            if os.path.exists(path) and not options.force and "teacher_of" not in params.load(path).metadata:
                raise ValueError(f"{path} already exists, and no interrupted training left it: --force replaces it")
        return Teachers(recipes, paths, {"config": config, "encoding": encoding, "classes": classes})
    models = []
    for name in names:
        if not name:
            raise ValueError(f"--teachers {options.teachers!r}: need a number, or files with commas between them")
        model = params.load(name)
        if model.config != config:
            raise ValueError(f"--teachers: {name} is for {model.config}, not for {config}")
        for what, has, need in (("encoding", model.encoding, encoding), ("classes", model.classes, classes)):
            if has != need:
                raise ValueError(f"--teachers: {name} has {what} {has}: need {need}")
        models.append(model)
    return Teachers(given=models, names=names)
