"""GGUF models by llama.cpp."""
