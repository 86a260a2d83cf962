"""Adapters to the libraries that run models. Each is imported only if it is chosen."""
