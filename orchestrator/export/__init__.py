"""A checkpoint becomes a Hugging Face directory: offline, on the CPU, one weight at a time."""
