"""A model whose every part counts, a sentence, made-up times: for tests of the explain page."""

import torch
from preparing import SENTENCES

from dragoman.config import config_from_toml
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.inspection.explain_costs import MeasuredLayer
from dragoman.inspection.layer_costs import LayerCost
from dragoman.model.folder import LoadedModel
from dragoman.model.transformer import Transformer

TEXT = "the red cat sees the dog"
MEASURED = [
    MeasuredLayer("self-attention", [LayerCost(2**n, 1e-6 * 4**n) for n in range(4, 9)]),
    MeasuredLayer("recurrent", [LayerCost(2**n, 1e-5 * 2**n) for n in range(4, 9)]),
    MeasuredLayer("convolutional", [LayerCost(16, 1e-4)]),
]
SETTINGS = """
source_language = "en"
target_language = "de"
[model]
d_model = 32
d_ff = 24
heads = 4
d_k = {d_k}
encoder_layers = 2
decoder_layers = 2
norm = "{norm}"
feed_forward = "{feed_forward}"
positions = "{positions}"
[search]
max_extra_tokens = 3
"""


def random_model(
    norm: str = "pre", positions: str = "sinusoidal", d_k: int = 8, feed_forward: str = "relu"
) -> LoadedModel:
    settings = SETTINGS.format(norm=norm, positions=positions, d_k=d_k, feed_forward=feed_forward)
    config = config_from_toml(settings, "settings")
    texts = [text for pair in SENTENCES for text in pair]
    tokenizer = Tokenizer.train([*texts, *[TEXT, "I love you"] * 9], 350)
    torch.manual_seed(1)
    network = Transformer(config.model, tokenizer.vocabulary_size)
    with torch.no_grad():
        network.embedding.weight *= 4
        for name, weight in network.named_parameters():
            if "norm" in name:  # else the gains are all 1 and the offsets 0
                weight += 0.2 * torch.randn_like(weight)
    return LoadedModel(config, tokenizer, network.eval())
