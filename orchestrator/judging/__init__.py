"""What came of an attempt: why it ended, who hangs, who is slow, where its time went. Pure."""
