"""Training drafters: text, features, heads, files."""
