"""Engines: the adapters to what runs models. Each wraps one library and is imported only when chosen."""
