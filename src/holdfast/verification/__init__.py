"""What `holdfast verify` does: a device examined, trained on and hurt. No torch here."""
