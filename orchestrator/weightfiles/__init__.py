"""The safetensors files of a Hugging Face directory: found, read in parts, written in parts."""
