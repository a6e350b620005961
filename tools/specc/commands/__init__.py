"""The verbs, one file each: `main` reads its flags, does its work and prints."""
