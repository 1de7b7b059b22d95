"""Parallel text: readers, cleaning, splitting, the tokenizer, the store, batches and samples."""
