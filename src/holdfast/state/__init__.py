"""What is protected, as bytes: flatten, snapshot, slots, checkpoint, generators.

The worker writes it. slots, layout, checkpoint and weights_file are read by processes without torch.
"""
