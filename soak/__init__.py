"""The soak: pairs of real daemons under load and faults, every text compared. README.md in this folder tells more."""
