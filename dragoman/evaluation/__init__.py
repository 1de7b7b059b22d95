"""Scores that can be repeated: BLEU and chrF with their signatures, placeholder survival."""
