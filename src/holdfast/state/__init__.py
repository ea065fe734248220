"""What is protected, as bytes: flatten, snapshot, slots, checkpoint, generators. Worker side; readers without torch apart."""
