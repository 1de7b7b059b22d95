"""Loss, schedule, optimizer, trainer, checkpoints, averaging (section 5)."""
