"""Hugging Face models by MLX, on Apple Silicon and on Linux."""
