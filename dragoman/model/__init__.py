"""The Transformer, in the paper's order (arXiv 1706.03762, section 3)."""
