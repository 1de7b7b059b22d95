"""Search, translation and scoring (section 6.1)."""
