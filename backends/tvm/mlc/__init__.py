"""Libraries and folders that an MLC engine loads."""
