"""A language model in training: measured by how well it predicts held-out text."""

from dataclasses import replace
from typing import Any

from dragoman.cli.validation import Results, TaskRun, spread
from dragoman.decoding.generation import Wish, Writer
from dragoman.decoding.perplexity import perplexity, surprise
from dragoman.model.folder import Loaded
from dragoman.model.sequence_model import SequenceModel

# What a validation shows: so many beginnings of validation texts, gone on with.
_SHOWN = 2
_WISH = Wish(max_tokens=30, top_p=0.9)


class LanguageModelRun(TaskRun):
    """Perplexity, and what it writes."""

    purpose = "writes text and says how probable given text is"
    usage = """```sh
dragoman generate --model DIR --prompt "..."      # DIR: this folder
dragoman perplexity --model DIR text.txt
```

```python
from dragoman.decoding.generation import Wish, Writer

print(Writer.load("DIR").write(["..."], Wish())[0][0].text)
```"""
    rows, tokens = "rows of text", "tokens"

    def scores(self, model: SequenceModel) -> dict[str, Any]:
        """How the model goes on with the first words of some validation texts."""
        texts = [pair.target.split() for pair in spread(self.pairs, _SHOWN)]
        prompts = [" ".join(words[: min(8, (len(words) + 1) // 2)]) for words in texts]
        writer = Writer(Loaded(self.config, self.tokenizer, model))
        wish = replace(_WISH, max_tokens=min(_WISH.max_tokens, self.config.data.max_tokens))
        written = writer.write(prompts, wish)
        return {
            "samples": [
                {"prompt": prompt, "continuation": texts[0].text}
                for prompt, texts in zip(prompts, written, strict=True)
            ]
        }

    def results(self, model: SequenceModel, nll: float) -> Results:
        """Perplexity by tokens, words and characters, of texts in the pieces of training."""
        tokens = int((self.store.target_lengths - 1).sum())
        found = surprise(nll * tokens, [pair.target for pair in self.pairs], tokens)
        lines = [
            f"- perplexity {perplexity(found.nats / count):.3f} a {name}"
            for name, count in found.units().items()
        ]
        return Results(
            {name: value for name, value in found.to_json().items() if "_per_" in name},
            f"validation texts:\n{found.render()}",
            f"On {found.texts:,} validation texts, their ends included:\n\n" + "\n".join(lines),
        )
