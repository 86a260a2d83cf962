"""Texts of chats and answers: templates, thoughts, calls of tools, stop strings."""
