"""Link."""
