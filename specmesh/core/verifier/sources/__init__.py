"""Sources of drafts, one file each."""
