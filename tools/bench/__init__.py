"""How fast, and why not faster: limits of the machine, cost of each function, peers side by side."""
