"""Choice of each model's tokenizer, as in the router: the one set for the model, else the one for all models."""

from __future__ import annotations

from collections.abc import Sequence

from kvatlas._text import closest
from kvatlas.router.check.findings import SETTINGS, CheckedEngine, EngineReport
from kvatlas.router.config import RouterConfig
from kvatlas.router.tokenizers import ENGINE, resolve
from kvatlas.tokenize import LocalTokenizer


class ModelTokenizers:
    """Tokenizers by model, each read once."""

    def __init__(self, config: RouterConfig) -> None:
        """Read all tokenizers that the configuration names.

        Raises:
            TokenizerError: A tokenizer cannot be read.
        """
        self._default = resolve(config.router.tokenizer)
        # As in the router, `none` for a model leaves it the tokenizer for all.
        found = {model: resolve(str(name)) for model, name in dict(config.router.tokenizers).items()}
        self._named = list(found)
        self._own = {model: path for model, path in found.items() if path is not None}
        paths = {self._default, *self._own.values()} - {None, ENGINE}
        self._read = {path: LocalTokenizer(path) for path in paths if path is not None}

    def path(self, model: str) -> str | None:
        """Path of a model's tokenizer; `engine` for tokenizing by the engine; None for no tokenizing."""
        return self._own.get(model, self._default)

    def local(self, model: str) -> LocalTokenizer | None:
        """Tokenizer of a model in this process; None if the model has none here."""
        return self._read.get(self.path(model) or "")

    def option(self, model: str) -> str:
        """Name of the option that sets the model's tokenizer."""
        return f"--model-tokenizer {model}=PATH" if model in self._own else "--tokenizer"

    def look_for_models(self, looked: Sequence[CheckedEngine]) -> EngineReport | None:
        """Test that engines serve all models for which a tokenizer is set. Returns a report if not, else None."""
        served = {name for one in looked for name in one.names}
        unused = [model for model in self._named if model not in served]
        if not unused:
            return None
        report = EngineReport("settings", "", role=SETTINGS)
        unknown = [one.report.worker for one in looked if not one.models]
        for model in unused:
            near = closest(model, sorted(served))
            report.add(
                "tokenizers",
                "warning" if unknown else "problem",
                f"--model-tokenizer names {model}, which no engine serves"
                + (f"; not known of {', '.join(unknown[:4])}" if unknown else "")
                + ": the tokenizer is never used",
                f"name a model as the engines do{f': did you mean {near}?' if near else ''}",
                code="unused_tokenizer",
            )
        return report
