"""What a translator is made of, so that another process can make the same; loads no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import SearchConfig
from dragoman.decoding.loading import EngineChoice, open_engine, open_ensemble
from dragoman.decoding.translator import Translator
from dragoman.model.description import ModelDescription, describe


@dataclass(frozen=True)
class Recipe:
    """Model folders (several are an ensemble), search settings and engine."""

    folders: tuple[Path, ...]
    search: SearchConfig
    choice: EngineChoice

    def open(
        self, say: Callable[[str], None], description: ModelDescription | None = None
    ) -> Translator:
        """The translator; say is told what takes time. description is of the first folder.

        Raises UserError as `dragoman.decoding.loading` does.
        """
        if len(self.folders) > 1:
            return Translator(open_ensemble(self.folders, self.choice), self.search)
        described = description or describe(self.folders[0])
        return Translator(open_engine(described, self.choice, say), self.search)
