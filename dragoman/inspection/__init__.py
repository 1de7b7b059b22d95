"""Pictures of what a model does: attention maps and training curves."""
