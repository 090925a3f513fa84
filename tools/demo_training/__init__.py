"""Training of the demo model: its data, its trainable form, its training."""
