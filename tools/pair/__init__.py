"""Parts of `tools/train_pair.py`: data, tokenizer, model, training, export and measurement."""
