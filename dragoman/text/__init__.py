"""Lossless lines, keys for leak checks, sentence segments that rejoin, protected spans."""
