"""Work on many machines, on an engine that is there already: Ray Data."""
